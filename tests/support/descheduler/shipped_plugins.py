"""What a configuration may say of the plugins that ship with koord-descheduler."""

from koord_descheduler.framework.profile import known_plugins
from koord_descheduler.planning import installed_plugins

IN_TREE = known_plugins(installed_plugins("koord-descheduler"))
