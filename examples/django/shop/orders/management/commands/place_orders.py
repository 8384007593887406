from django.core.management.base import BaseCommand
from django.db import transaction

from celery_sqs_visibility import publish_batch
from shop.celery import app
from shop.orders.models import Order
from shop.orders.tasks import invoice


class Command(BaseCommand):
    help = "Place an order for each customer, all or none, and have them invoiced."

    def add_arguments(self, parser):
        parser.add_argument("customers", nargs="+")

    def handle(self, *, customers, **_):
        # The block is outside: the messages are published when the transaction commits, in batches of ten.
        # If it rolls back there are none.
        with publish_batch(app), transaction.atomic():
            for customer in customers:
                if Order.objects.filter(customer=customer).exists():
                    raise SystemExit(f"{customer} has an order already: none was placed")
                order = Order.objects.create(customer=customer)
                invoice.delay_on_commit(order.pk)
        self.stdout.write(f"{len(customers)} orders placed")
