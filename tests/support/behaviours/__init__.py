"""Behaviours of SQS as data: a language for rows, implementations that replay them, a page about them."""
