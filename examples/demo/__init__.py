"""`make demo`: a worker, an SQS of its own, ten tasks, and what becomes of them."""
