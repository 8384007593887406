"""Contacts with the internals of others: their private names that we need, and their methods that we replace.

A contact is a function or class. Its docstring names the file of Celery, kombu, billiard, botocore or Python,
and what breaks without it. It is needed for all supported versions unless the docstring names some.
`tests/unit/test_contact_points.py` has a row for each, and finds private names of others outside this room.
"""
