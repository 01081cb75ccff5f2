"""The descheduler's configuration: descheduler/v1alpha2 as files have it, and what it means."""
