"""All checks of the doctor, the most harmful findings first."""

from __future__ import annotations

from celery_sqs_visibility.operate.doctor import queue_checks, run_checks, setting_checks
from celery_sqs_visibility.operate.doctor.facts import Facts, Finding

CHECKS = (
    queue_checks.check_existence,
    setting_checks.check_permissions,
    setting_checks.check_permissions_on_dead_letters,
    setting_checks.check_routes,
    setting_checks.check_schedule,
    queue_checks.check_dead_letters,
    queue_checks.check_receives,
    queue_checks.check_short_retention,
    queue_checks.check_retention,
    queue_checks.check_dead_letter_queues,
    queue_checks.check_endless_retries,
    queue_checks.check_in_flight,
    run_checks.check_store,
    run_checks.check_heartbeat,
    run_checks.check_horizon,
    run_checks.check_long_delays,
    run_checks.check_early_acks,
    run_checks.check_repeats,
    run_checks.check_shutdown,
    run_checks.check_clock,
    setting_checks.check_priorities,
    setting_checks.check_remote_control,
    setting_checks.check_polls,
    queue_checks.check_queue_delays,
    setting_checks.check_unknown_permissions,
)


def findings_of(facts: Facts) -> list[Finding]:
    """All findings, the worst first."""
    return sorted(
        (finding for check in CHECKS for finding in check(facts)), key=lambda finding: finding.severity
    )
