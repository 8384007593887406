from django.db import models


class Order(models.Model):
    customer = models.CharField(max_length=100)
    invoiced = models.BooleanField(default=False)

    def __str__(self):
        return f"order {self.pk} of {self.customer}"
