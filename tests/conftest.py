"""An SQS emulator, a proxy that breaks things, and real workers, for every test that asks for them."""

import functools
import os
import re
import signal
import uuid

import boto3
import pytest
from hypothesis import HealthCheck, settings
from support import audits
from support.app import behind, close_app, make_app
from support.clock import FakeClock
from support.diary import DIARY_VARIABLE, Diary
from support.known_deviations import expect_failures
from support.order import Record, Rest, Scheduling, arrange
from support.programs import require_all
from support.proxy import FaultProxy
from support.reliability import FIXTURE, Table, report
from support.sqs_servers import CREDENTIALS, SERVERS, sqs_server
from support.worker import WorkerProcess

POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]
#: What a test shows on one of the first, it repeats on the others.
FIRST_POOLS = {"prefork", "threads"}
# Set, they would win over what a test configures.
CELERY_VARIABLES = ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND", "CELERY_CONFIG_MODULE")

# The same examples in every run, however slow the machine; `--hypothesis-profile fresh` tries others, and
# `quick` fewer of them.
settings.register_profile("fresh", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", settings.get_profile("fresh"), derandomize=True, database=None)
settings.register_profile("quick", settings.get_profile("suite"), max_examples=20)
settings.load_profile("suite")


def pytest_addoption(parser):
    parser.addoption(
        "--pool",
        choices=POOLS,
        default="prefork",
        help="the pool of every worker whose test does not name one; with another than prefork, tests that "
        "name one and tests marked prefork_only are deselected",
    )
    parser.addoption(
        "--sqs-server",
        choices=SERVERS,
        default="moto",
        help="the server that speaks SQS; tests that a known deviation of it fails are expected to fail",
    )
    parser.addoption(
        "--repeated",
        choices=["with", "without", "only"],
        default="with",
        help="tests that repeat on solo, gevent or eventlet what they show on prefork or threads",
    )
    parser.addoption(
        "--programs",
        choices=["skip", "require"],
        default="skip",
        help="what becomes of tests whose program (jq, Chromium, a redis-server) is missing here",
    )
    parser.addoption(
        "--reliability",
        metavar="FILE",
        help="run the tests that tell what a fault did; write it into its table",
    )
    parser.addoption(
        "--durations-record",
        action="store_true",
        help="write tests/durations.json, by which tests that run side by side are ordered",
    )
    parser.addoption("--screenshot", metavar="FILE", help="write what the browser saw of Flower's tasks")


def pytest_configure(config):
    # A shell without job control lets what it starts in the background ignore Ctrl-C; our workers are not to.
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if config.getoption("programs") == "require":
        require_all()
    if config.getoption("durations_record") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Record())
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Rest(int(config.workerinput["workerid"].removeprefix("gw"))))
    path = config.getoption("reliability")
    # Of several processes that test, the one that hears of all writes.
    if path and not config.option.collectonly and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Table(path))
    config.addinivalue_line(
        "markers", "own_pool: the test names its workers' pools itself; deselected by --pool"
    )
    config.addinivalue_line("markers", "prefork_only(reason): needs child processes; deselected by --pool")
    config.addinivalue_line(
        "markers",
        "relies_on(*rows, run=True): what must be as behaviours.jsonl has it; fails where it is not",
    )
    config.addinivalue_line("markers", "breaks_rules: on purpose; the audit of its workers is not for it")
    config.addinivalue_line("markers", "slow(reason): takes seconds of CPU; left out by `make quick`")


def pytest_collection_modifyitems(config, items):
    """With `--pool`, leave out what would run as it always does, and what that pool cannot do.

    With `--repeated`, leave out what repeats on another pool, or all else. With `--reliability`, leave out
    what would write no row. What is left runs in the order of `support.order`, where several processes test.
    """
    other_pool = config.getoption("pool") != "prefork"
    rows_only = config.getoption("reliability")
    repeated = config.getoption("repeated")
    shown = {_function(item) for item in items if _pool(item) in FIRST_POOLS}

    def unwanted(item):
        own_pool = (
            _pool(item) or item.get_closest_marker("own_pool") or item.get_closest_marker("prefork_only")
        )
        repeats = _pool(item) not in {None, *FIRST_POOLS} and _function(item) in shown
        return (
            (other_pool and own_pool)
            or (repeated != "with" and repeats == (repeated == "without"))
            or (rows_only and FIXTURE not in getattr(item, "fixturenames", ()))
        )

    config.hook.pytest_deselected(items=[item for item in items if unwanted(item)])
    items[:] = [item for item in items if not unwanted(item)]
    expect_failures(items, config.getoption("sqs_server"))
    if hasattr(config, "workerinput"):
        arrange(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return Scheduling(config, log) if config.getoption("dist") == "loadscope" else None


def _pool(item):
    """The pool that the test names."""
    return getattr(getattr(item, "callspec", None), "params", {}).get("pool")


def _function(item):
    return item.nodeid.partition("[")[0]


@pytest.fixture(scope="session", autouse=True)
def credentials():
    """Made-up AWS credentials in the environment; nothing real, and no proxy, survives there."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith("AWS_") or name in CELERY_VARIABLES or name.lower().endswith("_proxy"):
                patch.delenv(name)
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield CREDENTIALS


@pytest.fixture(scope="session")
def emulator(credentials, tmp_path_factory, pytestconfig):
    """The server of `--sqs-server`, one for the session; tests keep apart by queue names."""
    with sqs_server(pytestconfig.getoption("sqs_server"), tmp_path_factory.mktemp("emulator")) as server:
        yield server


@pytest.fixture
def proxy(emulator, monkeypatch):
    """A fault proxy of the test's own, and the endpoint of every AWS client made in the test."""
    with FaultProxy(emulator.url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", proxy.url)
        yield proxy


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def queue(request):
    """A queue name no other test has; the queue itself does not exist yet."""
    test = re.sub(r"\W+", "-", request.node.name).strip("-")
    return f"{test[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def sqs(emulator):
    """A boto3 client straight at the emulator, for the test's own looks."""
    client = boto3.client("sqs", endpoint_url=emulator.url)
    yield client
    client.close()


@pytest.fixture
def diary(tmp_path, monkeypatch):
    """What the tasks note, in worker processes or in this one."""
    path = tmp_path / "diary.jsonl"
    monkeypatch.setenv(DIARY_VARIABLE, str(path))
    return Diary(path)


@pytest.fixture
def workers(proxy, tmp_path, request):
    """Those that `start_worker` has started; killed after the test, and audited: see `support.audits`."""
    workers = []
    yield workers
    for worker in workers:
        worker.stop()
    if "breaks_rules" not in request.keywords:
        audits.check(tmp_path.glob("*.events"))


@pytest.fixture
def start_worker(workers, proxy, diary, tmp_path, pytestconfig):
    """Start `WorkerProcess`es behind the proxy: `start_worker("module", queues=[queue], ...)`.

    Their pool is the one the test names, or that of `--pool`. They have no broker URL but that of `config`.
    Returns when the worker is ready (`ready=False`: at once). All are killed after the test.
    """

    def start(module, *, ready=True, config=None, env=None, **options):
        log_path = tmp_path / f"worker{len(workers) + 1}.log"
        options["env"] = {audits.VARIABLE: str(audits.file_beside(log_path)), **(env or {})}
        defaults = {"endpoint": proxy.url, "pool": pytestconfig.getoption("pool")}
        worker = WorkerProcess(module, log_path, config=config, **{**defaults, **options})
        workers.append(worker)
        worker.start()
        return worker.wait_ready() if ready else worker

    return start


@pytest.fixture
def producer(proxy):
    """Make Celery apps to send with from the test, behind the proxy: `producer(config)`."""
    apps = []

    def make(config=None):
        app = make_app("producer", behind(proxy.url, config), set_as_current=False)
        apps.append(app)
        return app

    yield make
    for app in apps:
        close_app(app)


@pytest.fixture
def reliability(request, diary):
    """Tell what a fault did, for docs/reliability.md: `support.reliability.report`."""
    return functools.partial(report, request.node, diary)
