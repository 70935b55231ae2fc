"""The Kubernetes values: against the chart's schema, as far as it goes without a cluster; one truth with student/."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import yaml
from lab_server import ROOT
from traitlets.config import Config

from course.classroom import PROFILES, plan_classroom

HUB = ROOT / "course/hub"
VALUES, UNIVERSITY = (
    yaml.safe_load((HUB / name).read_text()) for name in ("values.yaml", "university.yaml")
)

OBJECT, LIST, TEXT, WHOLE, NUMBER, TRUTH = dict, list, str, int, (int, float), bool
SCHEMA = {
    "hub.config": OBJECT,
    "hub.db.type": TEXT,
    "hub.db.url": (str, type(None)),
    "hub.db.password": (str, type(None)),
    "hub.services": OBJECT,
    "proxy.https.enabled": (bool, type(None)),
    "proxy.https.hosts": LIST,
    "proxy.https.letsencrypt": OBJECT,
    "singleuser.networkPolicy": OBJECT,
    "singleuser.image.name": TEXT,
    "singleuser.image.tag": TEXT,
    "singleuser.cmd": (list, str, type(None)),
    "singleuser.defaultUrl": TEXT,
    "singleuser.startTimeout": WHOLE,
    "singleuser.memory.limit": (int, float, str),
    "singleuser.memory.guarantee": (int, float, str),
    "singleuser.cpu.limit": NUMBER,
    "singleuser.cpu.guarantee": NUMBER,
    "singleuser.extraEnv": OBJECT,
    "singleuser.storage.capacity": TEXT,
    "singleuser.storage.extraVolumes": LIST,
    "singleuser.storage.extraVolumeMounts": LIST,
    "singleuser.lifecycleHooks.postStart": OBJECT,
    "singleuser.extraFiles": OBJECT,
    "singleuser.profileList": LIST,
    "cull.enabled": TRUTH,
    "cull.timeout": WHOLE,
    "cull.every": WHOLE,
    "prePuller.continuous.enabled": TRUTH,
}
"""Keys and types of jupyterhub/zero-to-jupyterhub-k8s, jupyterhub/values.schema.yaml at 02dd73d (Helm refuses others).

Below a key whose type is an object the chart takes anything, except in ``extraFiles``.
"""


def flat(values: dict, path: str = "") -> dict:
    """Dotted path → value, down to the paths of SCHEMA."""
    found = {}
    for key, value in values.items():
        here = f"{path}.{key}".strip(".")
        deeper = isinstance(value, dict) and here not in SCHEMA
        found |= flat(value, here) if deeper else {here: value}
    return found


def refusals(values: dict) -> list[str]:
    """Paths that the chart does not know, or whose value is of another type."""
    return [
        path for path, value in flat(values).items() if not isinstance(value, SCHEMA.get(path, ()))
    ]


def test_the_chart_knows_every_key():
    assert refusals(VALUES) == refusals(UNIVERSITY) == []
    assert set(flat(VALUES)) | set(flat(UNIVERSITY)) == set(SCHEMA)


@pytest.mark.parametrize(
    "wrong",
    [
        {"singelusers": {}, "singleuser": {"memmory": {"limit": "3G"}}},
        {"cull": {"timeout": "7200"}},
        {"culling": 1},
    ],
)
def test_another_key_or_type_is_seen(wrong):
    assert refusals(wrong)


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


def test_the_pages_versions_are_those_of_the_files():
    page = (HUB / "KUBERNETES.md").read_text()
    pins = (ROOT / "dev" / "constraints.txt").read_text()
    found = re.findall(r"(?<=[ ])([a-z]+)==([\d.]+)", page)
    assert {name for name, _ in found} == {"nbgitpuller", "nbgrader"}
    for name, version in found:
        assert f"\n{name}=={version}\n" in pins
    assert VALUES["singleuser"]["image"]["tag"] in page


def test_where_the_solutions_stand_is_out_of_a_student_s_reach_on_all_three_hubs():
    hidden = {"course", "tests", "build", ".git"}
    config = (HUB / "jupyterhub_config.py").read_text()
    walled = re.search(r"\(ROOT / name for name in \((.+)\)\)", config)[1]
    assert set(re.findall(r'"(.+?)"', walled)) == hidden
    removed = re.search(r"rm -rf (.+)' \.", (HUB / "KUBERNETES.md").read_text())[1]
    assert set(removed.split()) == hidden
    assert {Path(place).name for place in tljh_config()[0]["HIDDEN"]} == hidden


def tljh_config(**environment) -> tuple[dict, Config]:
    """The names of ``littlest.py`` as JupyterHub runs it there, and the settings that it makes."""
    settings, file = Config(), HUB / "littlest.py"
    with patch.dict(os.environ, environment):
        names = {"__file__": str(file), "get_config": lambda: settings}
        exec(compile(file.read_text(), file, "exec"), names)
    return names, settings


def test_a_server_of_the_littlest_hub_has_one_card_and_a_student_s_no_solutions():
    _, settings = tljh_config(MEMKIT_HUB_CARDS="0,MIG-1", MEMKIT_GPU_GIB="7.3")
    spawners = {}
    for name in ("ada", "bob", "teacher"):
        user = SimpleNamespace(name=name, admin=name == "teacher")
        spawners[name] = SimpleNamespace(user=user, environment=settings.Spawner.environment)
        settings.Spawner.pre_spawn_hook(spawners[name])
    drawn = [each.environment["CUDA_VISIBLE_DEVICES"] for each in spawners.values()]
    assert drawn == ["0", "MIG-1", "0"]
    assert "CUDA_VISIBLE_DEVICES" not in settings.Spawner.environment
    assert settings.Spawner.environment["MEMKIT_GPU_GIB"] == "7.3"
    hidden = spawners["ada"].unit_extra_properties["InaccessiblePaths"].split()
    assert f"-{ROOT / 'course'}" in hidden and len(hidden) == 4
    assert "InaccessiblePaths" not in spawners["teacher"].unit_extra_properties
    settings.Spawner.post_stop_hook(spawners["ada"])
    settings.Spawner.post_stop_hook(spawners["teacher"])
    settings.Spawner.pre_spawn_hook(spawners["teacher"])
    assert spawners["teacher"].environment["CUDA_VISIBLE_DEVICES"] == "0"


def test_both_hubs_tell_a_server_the_same():
    told = VALUES["singleuser"]["extraEnv"] | {"PYTHONPATH": f"{ROOT}/chapters"}
    settings = tljh_config()[1]
    assert settings.Spawner.environment == told
    assert settings.Spawner.default_url == VALUES["singleuser"]["defaultUrl"]
