"""Configurations from files, and where the console finds the admin's token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from feddisco.admin import connect, load_config
from feddisco.commands.connection import load_coordinator_settings
from feddisco.settings import ConsoleSettings
from feddisco.settings import load as load_console_settings
from shared.config import DiscoWeighting
from shared.problems import InvalidConfiguration, MissingToken
from tests.helpers.http_servers import closed_port


def written(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


def test_the_demo_is_disco_on_niid2() -> None:
    config = load_config("demo", rounds=3)
    assert (config.name, config.task, config.rounds, config.min_clients) == ("demo", "digits", 3, 6)
    assert config.weighting == DiscoWeighting(a=0.5, b=0.1)


def test_json_is_yaml(tmp_path: Path) -> None:
    path = written(tmp_path, '{"name": "one", "task": "digits", "rounds": 2}')
    assert load_config(path).rounds == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\ntask: digits\nrounds: 0\n", r"rounds: .*greater than or equal to 1 \(received 0\)"),
        ("name: x\ntask: digits\nrounds: 2\nspeed: 9\n", r"speed: .* \(received 9\)"),
        ("name: Big\ntask: digits\nrounds: 2\n", r"name: .* \(received 'Big'\)"),
        ("name: x\ntask: digits\nrounds: 2\nweighting: {kind: disko}\n", r"weighting: .*disko"),
        ("name: x\ntask: digits\nrounds: 2\nlocal: {batch_size: .5}\n", r"local\.batch_size: .*0\.5"),
        ("name: x\nround: 2\n", r"round: there is no such key; did you mean rounds\? \(received 2\)"),
        ("name: x\nlocal: {epoch: 2}\n", r"local\.epoch: there is no such key; did you mean epochs\?"),
        ("name: x\nlocal: 3\n", r"local: has to be keys with values \(received 3\)"),
        (
            "name: x\npartition: iid\nrounds: 0\n",
            r"rounds: .*partition: 'iid' is none of iid:N[^']*$",
        ),
        (
            "name: x\nweighting: {kind: disco, metric: klx}\n",
            r"valid: weighting.disco.metric: Input should be 'kl', 'l1', 'l2' or 'cosine', or "
            r"package.module:attribute \(received 'klx'\)\.$",
        ),
        (
            "name: x\nlocal: {class_weights: even}\n",
            r"class_weights: Input should be 'balanced', or a list",
        ),
        (
            "name: x\nlocal: {class_weights: [1, -1]}\n",
            r"local.class_weights.1: Input should be gr[^;]*$",
        ),
        ("name: x\nlocal: {loss: 3}\n", r"local\.loss: Input should be text: put it in quotes, '3' \("),
        ("name: x\nlocal: {loss: huber}\n", r"local\.loss: Input should be package.module:attribute \("),
        (
            "name: x\nparticipants: {evaluators: hospital}\n",
            r"valid: participants.evaluators: Input should be 'anyone', or a list \(received 'hospital'\)\.$",
        ),
        ("name: [", r"is not YAML \(line 1, column 8\)"),
        ("name: x\nlocal:\n\tepochs: 1\n", r"is not YAML \(line 3, column 1\).* YAML takes no tabs"),
        ("# nothing\n", "is empty"),
        ("- name\n- task\n", "is not a mapping of fields to values"),
        ("just text", "is not a mapping of fields to values"),
    ],
)
def test_a_wrong_configuration_names_file_field_and_value(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidConfiguration, match=message) as caught:
        load_config(path)
    assert str(path) in str(caught.value)


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"nowhere\.yaml cannot be read: No such file"):
        load_config(tmp_path / "nowhere.yaml")


def test_the_last_fault_is_told_too(tmp_path: Path) -> None:
    path = written(tmp_path, yaml.safe_dump({"name": "x", "task": "digits", "rounds": 0, "seed": "many"}))
    with pytest.raises(InvalidConfiguration, match="rounds: ") as caught:
        load_config(path)
    assert "seed: " in str(caught.value)


def test_of_very_many_faults_the_first_are_told_and_how_many_more(tmp_path: Path) -> None:
    """Each takes a search for the key that was meant."""
    with pytest.raises(InvalidConfiguration) as caught:
        load_config(written(tmp_path, "name: x\n" + "".join(f"rouns{n}: 1\n" for n in range(1_500))))
    said = str(caught.value)
    assert said.count("there is no such key") == 20
    assert said.endswith("rouns19: there is no such key; did you mean rounds? (received 1); and 1,480 more.")


def test_a_token_comes_from_the_file_then_the_environment_then_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "admin-token").write_text("from-the-folder\n")
    (tmp_path / "given").write_text("from-the-file\n")
    monkeypatch.setenv("FEDDISCO_DATA_FOLDER", str(tmp_path))
    assert ConsoleSettings().find_token() == "from-the-folder"
    monkeypatch.setenv("FEDDISCO_ADMIN_TOKEN", "from-the-environment")
    assert ConsoleSettings().find_token() == "from-the-environment"
    assert ConsoleSettings(admin_token_file=tmp_path / "given").find_token() == "from-the-file"
    (tmp_path / "given").write_bytes(b"\xef\xbb\xbffrom-the-file\r\n")
    assert ConsoleSettings(admin_token_file=tmp_path / "given").find_token() == "from-the-file"


def test_no_token_says_where_it_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDDISCO_ADMIN_TOKEN", raising=False)
    with pytest.raises(MissingToken, match="admin-token") as caught:
        ConsoleSettings(data_folder=tmp_path).find_token()
    assert "FEDDISCO_ADMIN_TOKEN" in caught.value.hint


def test_an_address_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("some-token")
    settings = ConsoleSettings(url="localhost:8000", admin_token_file=tmp_path / "token")
    with pytest.raises(InvalidConfiguration, match="not a web address"), connect(settings) as client:
        client.runs()


def test_where_a_coordinator_was_looked_for_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    port = closed_port()
    monkeypatch.setattr("feddisco.settings.LOCAL", f"127.0.0.1:{port}")
    nowhere = ConsoleSettings(admin_token="x", data_folder=tmp_path)
    with pytest.raises(InvalidConfiguration, match="by --url or FEDDISCO_URL"), connect(nowhere) as client:
        client.runs()
    named = nowhere.model_copy(update={"url": f"http://127.0.0.1:{port}"})
    with pytest.raises(InvalidConfiguration, match=r"the port is wrong\.$"), connect(named) as client:
        client.runs()


@pytest.mark.parametrize(
    ("load_settings", "flags", "words"),
    [
        (load_coordinator_settings, {"port": "many"}, r"--port \(FEDDISCO_PORT\): .*integer"),
        (load_coordinator_settings, {}, r"^FEDDISCO_ADMIN_TOKEN: "),
        (load_console_settings, {"fingerprint": "9"}, r"--fingerprint \(FEDDISCO_FINGERPRINT\): "),
    ],
)
def test_a_wrong_setting_is_named_by_flag_and_variable(
    load_settings: Callable[[dict[str, str]], object],
    flags: dict[str, str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FEDDISCO_ADMIN_TOKEN", "short")
    with pytest.raises(InvalidConfiguration, match=words) as caught:
        load_settings(flags)
    assert "short" not in str(caught.value)
