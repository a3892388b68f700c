"""Secrets: none reaches a file or the terminal, whichever way it came in."""

from __future__ import annotations

import base64
import gzip
import html
import json
import logging
import re
import shlex
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote, quote_plus

import pytest
from chat_server import Raw, chat_server
from core_kit import Cli

import dynaweb
from dynaweb import events, masking
from dynaweb.config import resolve
from dynaweb.errors import ConfigError, MissingError
from dynaweb.masking import masked, masked_data, printable, remember
from dynaweb.runs import JsonlWriter, open_run, write_json, write_text
from dynaweb.runs.checksums import read_summed, with_sum

KEY, USER_PASSWORD, LOGIN = "canary-key-4711", "canary-p%40ss", "canary-login-<99>"
HEADER = "reward.server.headers.Authorization"
SMALL = ("--set", "model.threads=1", "--set", "env.task_settings.driver=static", "--set", "explore.episodes=2")


def everything(*folders: Path) -> bytes:
    """Every byte of every file, unpacked where it is packed."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert files
    raw = [path.read_bytes() for path in files]
    return b"\n".join([*raw, *(gzip.decompress(data) for data in raw if data[:2] == b"\x1f\x8b")])


def secret_settings(url: str) -> list[str]:
    """Settings that hold each kind of secret: keys, headers, the login of an address and that of a site."""
    address = url.replace("//", f"//someone:{USER_PASSWORD}@")
    server = [f"reward.server.base_url={address}", "reward.server.model=m", "reward.server.retries=0"]
    server += ["reward.server.key_variable=CANARY_KEY", "reward.server.headers.X-Team=Team $CANARY_TOKEN"]
    server += [f"{HEADER}={LOGIN}"]
    site = "eval.env_settings.logins.shopping"
    return [*server, "eval.env=webarena", f"{site}.username=ann", f"{site}.password_variable=CANARY_KEY"]


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_KEY", KEY)
    monkeypatch.setenv("CANARY_TOKEN", "canary-token")


@pytest.mark.parametrize("status", [200, 400])
def test_a_run_with_a_server_that_repeats_all_it_was_sent_keeps_no_secret(
    status: int, warm_cli: Cli, tmp_path: Path
) -> None:
    token = "canary-token-\"8'15"
    basic = "c29tZW9uZTpjYW5hcnktcEBzcw=="  # someone:canary-p@ss
    words = f"{KEY} {token} {USER_PASSWORD} canary-p@ss {basic} {LOGIN} \x1b[2J\x9b31m NO"
    reply = {"error": {"message": words}, "id": "x", "object": "chat.completion", "created": 0, "model": "m"}
    reply["choices"] = [{"index": 0, "message": {"role": "assistant", "content": words}, "finish_reason": "stop"}]
    with chat_server(Raw(json.dumps(reply).encode(), status)) as server:
        sets = [part for text in secret_settings(server.url) if "eval.env" not in text for part in ("--set", text)]
        done = warm_cli(
            *("run", "smoke", "--reward", "llm-judge", "--out", "out", *SMALL, *sets),
            **{"DYNAWEB_CACHE": str(tmp_path / "cache"), "CANARY_KEY": KEY, "CANARY_TOKEN": token},
        )
        assert server.requests
    assert done.returncode in (0, 1), done.stderr
    written = everything(tmp_path / "out", tmp_path / "cache")
    assert b"***" in written and b"CANARY_KEY" in written
    for secret in (KEY, token, json.dumps(token)[1:-1], USER_PASSWORD, "canary-p@ss", basic):
        assert secret.encode() not in written, secret
        assert secret not in done.stdout + done.stderr, secret
    assert "\x1b" not in done.stdout + done.stderr and "\x9b" not in done.stdout + done.stderr


def test_what_shows_a_recipe_shows_no_secret(cli: Cli, tmp_path: Path) -> None:
    sets = [part for text in secret_settings("http://localhost:9/v1") for part in ("--set", text)]
    wrong = ["--set", f"{HEADER}=[{LOGIN!r}]"]
    given = {"CANARY_KEY": KEY, "CANARY_TOKEN": "canary-token"}
    for command in ("config show", "config show --json", "run --dry-run", "run --dry-run --json"):
        options = [*command.split(), "--reward", "llm-judge", *sets]
        done = cli(*options, **given)
        assert done.returncode == 0, done.stderr
        assert "canary" not in done.stdout + done.stderr
        assert "***" in done.stdout and "CANARY_KEY" in done.stdout and "$CANARY_TOKEN" in done.stdout
    done = cli("config", "show", "--reward", "llm-judge", *sets, *wrong, **given)
    assert done.returncode == 2 and "Authorization" in done.stderr
    assert "canary" not in done.stdout + done.stderr


def test_run_folders_and_observers_get_no_secret(tmp_path: Path, variables: None) -> None:
    recipe = resolve(reward="llm-judge", overrides=secret_settings("http://localhost:9/v1"))
    assert recipe.flat()[HEADER] == LOGIN and recipe.secret == {HEADER}
    folder = open_run(recipe, out=tmp_path / "run", command="eval")
    folder.set_status("failed", error=f"{LOGIN} and http://a:b@c")
    write_text(folder.report, f"<p>{KEY} {LOGIN} canary-login-&lt;99&gt;</p>")
    with JsonlWriter(folder.metrics) as writer:
        writer.write({"event": "error", "error": f"{KEY} {LOGIN}"})
    write_json(folder.path / "x.json", {"deep": [{"er": (LOGIN, 1.5, None)}]})
    written = everything(folder.path)
    assert b"canary" not in written and b"a:b@c" not in written
    assert "canary" not in repr(recipe) + str(recipe) + json.dumps(recipe.tree()) + recipe.to_toml(origins=True)
    assert "canary" not in events.Failure("run", f"{KEY}\x1b[2J").error
    # Two recipes that differ in a secret alone are told apart by nobody.
    assert recipe.differences(resolve(recipe, overrides=[f"{HEADER}=other"])) == []


def test_a_run_is_resumed_with_its_secrets_given_again(tmp_path: Path, variables: None) -> None:
    sets = secret_settings("http://localhost:9/v1")
    folder = open_run(resolve(reward="llm-judge", overrides=sets), out=tmp_path / "run")
    folder.set_status("interrupted")
    saved = folder.recipe()
    with pytest.raises(ConfigError) as error:
        resolve(saved)
    assert f"give it again by --set {HEADER}=" in str(error.value)
    assert "give it again by --set reward.server.base_url=" in str(error.value)
    again = resolve(saved, overrides=[text for text in sets if text.startswith((HEADER, "reward.server.base_url"))])
    assert open_run(again, out=tmp_path / "run", resume=True).resumed
    with pytest.raises(ConfigError, match="no file holds secrets"):
        dynaweb.run(resume=True, out=tmp_path / "run")


def test_the_command_is_kept_without_its_secrets(
    tmp_path: Path, variables: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [*secret_settings("http://localhost:9/v1"), "reward.server.headers.Cookie=it's", "rl.updates=3"]
    sets += ['wm.server.headers={Authorization = "ab"}', "wm.server.model=m"]
    words = [part for text in sets for part in ("--set", text)]
    words[-4:-2] = [f"--set={words[-3]}"]
    monkeypatch.setattr("sys.argv", ["/usr/bin/dynaweb", "run", "smoke", *words, "--out", "a b"])
    recipe = resolve("smoke", reward="llm-judge", wm="frozen-llm", overrides=sets)
    record = json.loads((open_run(recipe, out=tmp_path / "run").path / "command.json").read_text())
    assert record["command"] == "run"
    line = shlex.split(record["line"])
    assert line[:3] == ["dynaweb", "run", "smoke"] and line[-2:] == ["--out", "a b"]
    assert {"rl.updates=3", "reward.server.headers.Cookie=***", f"{HEADER}=***"} <= set(line)
    assert "--set=wm.server.headers=***" in line
    assert not any(word in record["line"] for word in ("canary-", "it's", 'ab"', USER_PASSWORD))
    # A program of one's own has another command.
    monkeypatch.setattr("sys.argv", ["/opt/mine.py", "--set", "rl.updates=3"])
    other = open_run(resolve("smoke"), out=tmp_path / "other")
    assert json.loads((other.path / "command.json").read_text()) == {"command": "run", "line": ""}


def test_a_secret_in_an_environment_variable_is_kept_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_LOGIN", LOGIN)
    recipe = resolve(reward="llm-judge", overrides=[f"{HEADER}=Bearer $CANARY_LOGIN"])
    folder = open_run(recipe, out=tmp_path / "run")
    assert resolve(folder.recipe()).flat() == recipe.flat()
    assert masking.expanded("p", "Bearer $CANARY_LOGIN") == f"Bearer {LOGIN}"
    assert masked(f"wrong: {LOGIN}") == "wrong: ***"
    monkeypatch.delenv("CANARY_LOGIN")
    with pytest.raises(MissingError, match="p names the environment variable CANARY_LOGIN, which is not set"):
        masking.expanded("p", "Bearer $CANARY_LOGIN")


@pytest.mark.parametrize(
    ("address", "value", "result"),
    [
        ("http://any:$CANARY@h:1", "a/b@c:d?e#f%g h", "http://any:a%2Fb%40c%3Ad%3Fe%23f%25g%20h@h:1"),
        ("http://$CANARY:x@h:1", "a@b/c", "http://a%40b%2Fc:x@h:1"),
        ("http://$CANARY@h:1", "ann:a/b", "http://ann:a%2Fb@h:1"),
        ("http://any:x@$CANARY/y", "host.test:9300", "http://any:x@host.test:9300/y"),
        ("http://$CANARY", "host.test:9300", "http://host.test:9300"),
        ("$CANARY", "ws://u:p@h:1/a?b=c", "ws://u:p@h:1/a?b=c"),
        ("$CANARY://h:1", "https", "https://h:1"),
        ("ws://h:1/$CANARY", "a/b?c", "ws://h:1/a/b%3Fc"),
        ("ws://h:1?mail=a@b&token=$CANARY", "a&b=c/", "ws://h:1?mail=a@b&token=a%26b%3Dc%2F"),
    ],
)
def test_variables_in_an_address_hold_any_character(
    address: str, value: str, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", f" {value}\n")
    assert masking.expanded("p", address, address=True) == result
    assert masking.expanded("p", address) == address.replace("$CANARY", value)


def test_a_secret_is_known_however_a_server_writes_it() -> None:
    """As JSON of other languages, JSON in JSON, in HTML, in an address, in base64, in Python."""
    for secret in (
        "canary key+/=4711",
        "canary-\u043a\u043b\u044e\u0447-4711",
        "canary\"q'4711",
        "canary\\4711/x",
        "ca<na>ry&4711",
    ):
        text, plain = json.dumps(secret), json.dumps(secret, ensure_ascii=False)
        code = base64.b64encode(secret.encode()).decode()
        url_code = base64.urlsafe_b64encode(secret.encode()).decode()
        quoted = quote(secret, safe="")
        for written in (
            *(
                secret,
                text,
                plain,
                repr(secret),
                json.dumps(text),
                json.dumps(plain),
                repr(repr(secret)),
                ascii(secret),
            ),
            *(
                text.replace("/", "\\/"),
                plain.replace("/", "\\/"),
                html.escape(secret),
                html.escape(secret, quote=False),
            ),
            text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("'", "\\u0027"),
            *(quoted, quote(secret), quote_plus(secret), re.sub("%..", lambda one: one[0].lower(), quoted)),
            *(code, code.rstrip("="), url_code, url_code.rstrip("=")),
        ):
            masking.forget()
            remember(secret)
            assert "***" in masked(f"x {written} y"), written


@pytest.mark.parametrize("command", ["run", "data"])
def test_what_the_hub_repeats_of_its_token_is_masked(command: str, cli: Cli, tmp_path: Path) -> None:
    """Packages read it, whatever the settings say."""

    class Echo(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(403)
            self.send_header("X-Error-Message", f"no: {self.headers['Authorization']}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_POST = do_GET

        def log_message(self, *args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        hub = {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_TOKEN": KEY,
            "HF_HOME": str(tmp_path / "hf"),
        }
        store = ("--set", "data.demos=some/data", "--out", "out") if command == "run" else ()
        words = ("run", "smoke", *store) if store else ("data", "import", "nnetnav", "some/data", "x.jsonl.gz")
        done = cli(*words, **hub, HF_HUB_OFFLINE="0", NO_PROXY="127.0.0.1")
        server.shutdown()
    assert done.returncode == 3 and "some/data" in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert KEY not in done.stdout + done.stderr and "\x1b" not in done.stderr
    assert not store or KEY.encode() not in everything(tmp_path / "out")


def test_documents_are_summed_as_they_are_written(tmp_path: Path) -> None:
    remember(KEY)
    write_json(tmp_path / "x.json", with_sum({"error": f"the key {KEY}", "address": "http://a:b@c"}))
    assert read_summed(tmp_path / "x.json", ())["error"] == "the key ***"


def test_addresses_lose_user_and_password() -> None:
    for address, shown in (
        ("http://ann:pw@host:1/x?y=a@b", "http://***@host:1/x?y=a@b"),
        ("see https://ann@host.", "see https://***@host."),
        ("wss://a:p@ss@host/", "wss://***@host/"),
        ("http://host/@ann and a@b", "http://host/@ann and a@b"),
    ):
        assert masked(address) == shown
    assert masked("http://a:b@c", addresses=False) == "http://a:b@c"


def test_numbers_keys_and_ordinary_words_stay() -> None:
    remember("123456", "status", "abc")
    assert masked_data({"status": "status", "x": [123456, 0.123456, None, True]}) == {
        "status": "***",
        "x": [123456, 0.123456, None, True],
    }
    assert masked("0.123456 1123456 123456 abc") == "0.123456 1123456 *** abc"


def test_texts_of_any_length_are_masked_in_a_moment() -> None:
    remember("needle-in-hay")
    for part in ("a", "://", "http://", "@", "http://a:b", "http://a@", "needle-in-ha"):
        text = part * (400_000 // len(part))
        assert isinstance(masked(text), str) and isinstance(printable(text), str)


def test_control_characters_are_escaped() -> None:
    assert printable("a\x1b[31mb\x9b\x00\r\n\tü\u202e") == "a\\x1b[31mb\\x9b\\x00\r\n\tü\\u202e"
    assert printable("over\rwritten") == "over\\rwritten"


def test_the_log_is_masked_for_every_handler(caplog: pytest.LogCaptureFixture) -> None:
    remember(KEY)
    logging.getLogger("dynaweb").warning("the server said %s", f"{KEY}\x1b[2J")
    assert caplog.messages == ["the server said ***\\x1b[2J"]


def test_a_matrix_refuses_secrets_that_its_plan_would_hold(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'extends = "smoke"\n[reward]\nname = "llm-judge"\n'
        f'[reward.server]\nmodel = "m"\nheaders = {{ Authorization = "{LOGIN}" }}\n'
    )
    (tmp_path / "m.toml").write_text('[matrix]\nbase = "mine.toml"\nseeds = [0]\n[matrix.axes]\n"rl.n" = [2, 3]\n')
    done = cli("matrix", "run", "m.toml", "--out", "out")
    assert done.returncode == 2
    assert f"{HEADER} is a secret" in done.stderr and '= "$NAME"' in done.stderr
    assert b"canary" not in (done.stdout + done.stderr).encode()
    assert not (tmp_path / "out" / "plan.json").exists() and not (tmp_path / "out" / "matrix.json").exists()
