"""The manager's example package, as a third party would ship it: installed, found and run."""

import re
import textwrap
from pathlib import Path

from tests.support.examplepackages import run_installed_tests

EXAMPLE = Path(__file__).parents[2] / "plugins" / "example-manager"
INSTALLED = textwrap.dedent(
    '''
    """Beside the package's own tests: it is found, and the README's configuration is its own."""

    import re
    from pathlib import Path

    from koord.component.plugins.discovery import discover
    from koord_manager.daemon.settings import load_settings


    def test_it_is_found_and_configured(tmp_path: Path) -> None:
        readme = Path("README.md").read_text()
        [text] = re.findall(r"^```yaml\\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
        file = tmp_path / "licenses.yaml"
        file.write_text(text)
        settings = load_settings([f"--config={file}"], {}, discover=discover)
        assert settings.warnings() == []
        assert "Licenses" in settings.enabled
        assert settings.configuration.args["Licenses"].pools == {"large": 20, "small": 2}
        off = load_settings(["--feature-gates=Licenses=false"], {}, discover=discover)
        assert "Licenses" not in off.enabled
    '''
)


def test_the_installed_package_passes_its_tests_and_is_found(tmp_path: Path) -> None:
    done = run_installed_tests(EXAMPLE, tmp_path, INSTALLED)

    assert re.search(r"^9 passed", done, re.MULTILINE)
