"""The queues of an app, their alarms and policies, as templates for CloudFormation and Terraform."""
