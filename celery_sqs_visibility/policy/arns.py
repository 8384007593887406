"""Amazon Resource Names: `arn:partition:service:region:account:name`."""

from __future__ import annotations


def arn_of(service: str, region: str, account: str, name: str) -> str:
    """The ARN of a thing that has a region and an account."""
    return f"arn:{partition_of(region)}:{service}:{region}:{account}:{name}"


def account_and_name(arn: str) -> tuple[str, str]:
    """The last two parts."""
    account, name = arn.split(":")[-2:]
    return account, name


def region_of(arn: str) -> str:
    """The part before these."""
    return arn.split(":")[-3]


def beside(arn: str, name: str) -> str:
    """The ARN of a thing of another name, of the same service, region and account."""
    return f"{arn.rpartition(':')[0]}:{name}"


def partition_of(region: str) -> str:
    """The first part of ARNs in a region."""
    named = {"cn": "aws-cn", "us-gov": "aws-us-gov", "us-iso": "aws-iso", "us-isob": "aws-iso-b"}
    beginnings = sorted(named, key=len, reverse=True)
    return next((named[each] for each in beginnings if region.startswith(f"{each}-")), "aws")
