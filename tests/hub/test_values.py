"""The Kubernetes values: against the chart's schema, as far as it goes without a cluster; one truth with student/."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import yaml
from jsonschema import ValidationError, validate
from jupyterhub.spawner import SimpleLocalProcessSpawner
from lab_server import ROOT
from traitlets.config import Config

from course.classroom import PROFILES, plan_classroom

HUB = ROOT / "course/hub"
VALUES, UNIVERSITY = (
    yaml.safe_load((HUB / name).read_text()) for name in ("values.yaml", "university.yaml")
)

CHART = os.environ.get("MEMKIT_Z2JH_CHART")
"""The folder ``jupyterhub`` of a clone of jupyterhub/zero-to-jupyterhub-k8s; no network is needed then."""
needs_chart = pytest.mark.skipif(not CHART, reason="MEMKIT_Z2JH_CHART names no chart")


def merged(below: dict, above: dict) -> dict:
    """Two files of values, as Helm takes them."""
    both = [key for key in above if isinstance(above[key], dict) and key in below]
    return below | above | {key: merged(below[key], above[key]) for key in both}


WHOLE = merged(VALUES, UNIVERSITY)


@needs_chart
def test_the_chart_s_own_schema_takes_the_values_and_no_misspelt_one():
    schema, defaults = (
        yaml.safe_load(Path(CHART, name).read_text())
        for name in ("values.schema.yaml", "values.yaml")
    )
    validate(merged(defaults, VALUES), schema)
    validate(merged(defaults, WHOLE), schema)
    for wrong in ({"singleuser": {"memmory": {}}}, {"cull": {"timeout": "7200"}}, {"culling": 1}):
        with pytest.raises(ValidationError):
            validate(merged(merged(defaults, WHOLE), wrong), schema)


@needs_chart
@pytest.mark.parametrize(("values", "num_objects"), [(VALUES, 31), (WHOLE, 37)])
def test_helm_renders_the_chart(tmp_path, values, num_objects):
    """By Helm's own library; the chart in the repository has its version and its schema from a script."""
    helm = pytest.importorskip("helm_python", reason="pip install helm-python-sdk")
    chart = shutil.copytree(CHART, tmp_path / "jupyterhub")
    about = (chart / "Chart.yaml").read_text().replace("0.0.1-set.by.chartpress", "0.0.1")
    (chart / "Chart.yaml").write_text(about)
    schema = yaml.safe_load((chart / "values.schema.yaml").read_text())
    (chart / "values.schema.json").write_text(json.dumps(schema))
    with helm.Chart.load(chart) as loaded:
        loaded.validate_schema(values)
        files = loaded.render(values, name="class", namespace="class")
    written = [text for name, text in files.items() if name.endswith(".yaml")]
    objects = [each for text in written for each in yaml.safe_load_all(text) if each]
    assert len(objects) == num_objects
    deployed = {each["metadata"]["name"] for each in objects if each["kind"] == "Deployment"}
    assert {"hub", "proxy"} <= deployed and ("autohttps" in deployed) == (values is WHOLE)


def test_a_file_for_the_servers_has_a_place_and_one_content():
    """The schema's inner keys: a path, and one of three contents; ``data`` is written as the path's ending says."""
    for entry in VALUES["singleuser"]["extraFiles"].values():
        assert {key: type(value) for key, value in entry.items()} == {
            "mountPath": str,
            "data": dict,
        }
        assert re.fullmatch(r"/etc/jupyter/.+\.json", entry["mountPath"])


def test_what_a_student_s_server_is_told_is_the_same_on_both_hubs():
    for entry in VALUES["singleuser"]["extraFiles"].values():
        ours = HUB / "student" / entry["mountPath"].removeprefix("/etc/jupyter/")
        assert entry["data"] == json.loads(ours.read_text()), ours.name
    assert len(VALUES["singleuser"]["extraFiles"]) == len(list((HUB / "student").rglob("*.json")))
    config = (HUB / "jupyterhub_config.py").read_text()
    assert f'default_url = "{VALUES["singleuser"]["defaultUrl"]}"' in config
    assert f"--timeout={VALUES['cull']['timeout']}" in config
    assert f'"MEMKIT_HUB_MEMORY", "{VALUES["singleuser"]["memory"]["limit"]}"' in config


def test_the_profiles_are_what_the_classroom_command_says():
    ways = {way.name: way for way in plan_classroom("A100 SXM 80 GB", 20).ways}
    without, mig, mps, fraction = (
        p.get("kubespawner_override") for p in VALUES["singleuser"]["profileList"]
    )
    assert without is None
    [resource] = mig["extra_resource_limits"]
    assert resource.removeprefix("nvidia.com/mig-") in PROFILES["A100 SXM 80 GB"].split()
    assert f"Kubernetes: {resource}: 1" in ways["MIG"].settings
    assert mps["extra_resource_limits"] == {"nvidia.com/gpu": "1"}
    assert any("replicas: 10 " in line for line in ways["MPS"].settings)
    cap = f"MEMKIT_GPU_GIB={fraction['environment']['MEMKIT_GPU_GIB']} make hub"
    assert any(line.endswith(f" {cap}") for line in ways["fraction"].settings)


IMAGE = (HUB / "Containerfile").read_text()


def test_what_is_copied_into_the_image_holds_no_lab():
    words = [line.split()[1:] for line in IMAGE.splitlines() if line.startswith("COPY ")]
    copied = {name for *names, _ in words for name in names}
    tracked = subprocess.run(
        ["git", "-C", ROOT, "ls-files", *copied], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert copied <= {*tracked, *(str(parent) for name in tracked for parent in Path(name).parents)}
    assert not [name for name in tracked if name.startswith(("course", "tests", "build", "."))]
    assert "COPY . " not in IMAGE and "ADD " not in IMAGE


def test_the_image_is_that_of_the_values_and_has_what_they_call():
    image = VALUES["singleuser"]["image"]
    page = (HUB / "KUBERNETES.md").read_text()
    assert f"{image['name']}:{image['tag']}" in page and f"{image['name']}:{image['tag']}" in IMAGE
    assert VALUES["singleuser"]["cmd"] in IMAGE and "WORKDIR /srv/memkit\n" in IMAGE
    assert "cd /srv/memkit &&" in str(VALUES["singleuser"]["lifecycleHooks"])


def test_where_the_solutions_stand_is_out_of_a_student_s_reach_on_both_hubs():
    hidden = {"course", "tests", "build", ".git"}
    config = (HUB / "jupyterhub_config.py").read_text()
    walled = re.search(r"\(ROOT / name for name in \((.+)\)\)", config)[1]
    assert set(re.findall(r'"(.+?)"', walled)) == hidden
    assert {Path(place).name for place in tljh_config()[0]["HIDDEN"]} == hidden


def tljh_config(**environment) -> tuple[dict, Config]:
    """The names of ``littlest.py`` as JupyterHub runs it there, and the settings that it makes."""
    settings, file = Config(), HUB / "littlest.py"
    theirs = SimpleNamespace(UserCreatingSpawner=SimpleLocalProcessSpawner)  # in its place
    modules = {"tljh": theirs, "tljh.user_creating_spawner": theirs}
    with patch.dict(os.environ, environment), patch.dict(sys.modules, modules):
        names = {"__file__": str(file), "__name__": "littlest", "get_config": lambda: settings}
        exec(compile(file.read_text(), file, "exec"), names)
    return names, settings


def tljh_spawners(settings: Config) -> dict:
    """One for each of three people, the last of whom is an admin."""
    spawners = {}
    for name in ("ada", "bob", "teacher"):
        spawner = settings.JupyterHub.spawner_class(config=settings)
        spawner.user = SimpleNamespace(name=name, admin=name == "teacher")
        spawners[name] = spawner
    return spawners


def test_a_server_of_the_littlest_hub_has_one_card_and_a_student_s_no_solutions():
    with_cards = {"MEMKIT_HUB_CARDS": "0,MIG-1", "MEMKIT_GPU_GIB": "7.3"}
    _, settings = tljh_config(**with_cards)
    spawners = tljh_spawners(settings)
    for spawner in spawners.values():
        settings.Spawner.pre_spawn_hook(spawner)
    drawn = [each.environment["CUDA_VISIBLE_DEVICES"] for each in spawners.values()]
    assert drawn == ["0", "MIG-1", "0"]
    assert "CUDA_VISIBLE_DEVICES" not in settings.Spawner.environment
    assert settings.Spawner.environment["MEMKIT_GPU_GIB"] == "7.3"
    hidden = spawners["ada"].unit_extra_properties["InaccessiblePaths"].split()
    assert f"-{ROOT / 'course'}" in hidden and len(hidden) == 4
    assert "InaccessiblePaths" not in spawners["teacher"].unit_extra_properties
    states = {name: spawner.get_state() for name, spawner in spawners.items()}
    for name in ("ada", "teacher"):
        spawners[name].clear_state()
    settings.Spawner.pre_spawn_hook(spawners["teacher"])
    assert spawners["teacher"].environment["CUDA_VISIBLE_DEVICES"] == "0"
    # the hub starts anew, and ada's server has gone on
    _, settings = tljh_config(**with_cards)
    again = tljh_spawners(settings)
    again["ada"].load_state(states["ada"])
    settings.Spawner.pre_spawn_hook(again["bob"])
    assert again["bob"].environment["CUDA_VISIBLE_DEVICES"] == "MIG-1"


def test_both_hubs_tell_a_server_the_same():
    told = VALUES["singleuser"]["extraEnv"] | {"PYTHONPATH": f"{ROOT}/chapters"}
    settings = tljh_config()[1]
    assert settings.Spawner.environment == told
    assert settings.Spawner.default_url == VALUES["singleuser"]["defaultUrl"]
