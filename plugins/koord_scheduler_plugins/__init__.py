"""The plugins that ship with koord-scheduler, found like a third party's."""
