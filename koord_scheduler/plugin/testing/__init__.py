"""For tests of plugins: do their two forms agree?"""

from koord_scheduler.plugin.testing.agreement import assert_forms_agree, disagreements

__all__ = ["assert_forms_agree", "disagreements"]
