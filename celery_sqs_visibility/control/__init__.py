"""Remote control: queues for the commands to workers, their replies, and events. Imported where it is on."""
