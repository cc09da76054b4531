"""What can be said of Dockerfiles, compose file, chart and manifests without an engine and without a cluster.

The linters come from requirements/containers.txt; a test whose linter isn't installed is skipped.
"""

from __future__ import annotations

import copy
import fnmatch
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
CHART = ROOT / "deploy" / "helm" / "horovod"
KUBERNETES = "1.37"
HINT = "is not installed (requirements/containers.txt)"
KEYS = {"authorizedKeys": "ssh-ed25519 AAAA job", "privateKey": "-----BEGIN\nx\n-----END\n"}
# The fields of the operator's own types, of which no package has a schema: its v2beta1 and v1.
MPIJOB_FIELDS = {
    "slotsPerWorker",
    "runLauncherAsWorker",
    "runPolicy",
    "mpiReplicaSpecs",
    "sshAuthMountPath",
    "launcherCreationPolicy",
    "mpiImplementation",
}
RUN_POLICY_FIELDS = {
    "cleanPodPolicy",
    "ttlSecondsAfterFinished",
    "activeDeadlineSeconds",
    "backoffLimit",
    "schedulingPolicy",
    "suspend",
    "managedBy",
}


def tool(name: str) -> str:
    """The path of a linter in this environment."""
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        pytest.skip(f"{name} {HINT}")
    return path


def run(*command: str, **options: Any) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr


def documents(path: Path) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(path.read_text()) if found is not None]


def arguments(dockerfile: Path) -> dict[str, str]:
    """The build arguments and their defaults."""
    return dict(re.findall(r"^ARG (\w+)=(.*)$", dockerfile.read_text(), re.MULTILINE))


def by_file(dockerfile: Path) -> str:
    return dockerfile.name


# --- Docker ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=by_file)
def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    run(tool("hadolint"), "--no-color", str(dockerfile))


def test_shellcheck_finds_nothing_in_the_scripts() -> None:
    shellcheck = tool("shellcheck")
    run(
        shellcheck,
        "--enable=all",
        "--exclude=SC2250,SC2310,SC2312",
        str(ROOT / "docker/entrypoint.sh"),
    )
    kubexec = documents(ROOT / "deploy/kubeflow/mpijob-v1.yaml")[0]["data"]["kubexec.sh"]
    run(shellcheck, "-", input=kubexec)
    keys = documents(ROOT / "docker/compose.yaml")[0]["services"]["keys"]["command"][0]
    run(shellcheck, "--shell=sh", "-", input=keys)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=by_file)
def test_every_copied_file_is_there_and_not_ignored(dockerfile: Path) -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    kept = [line[1:] for line in lines if line.startswith("!")]
    assert all((ROOT / path).exists() for path in kept)
    sources = re.findall(r"^COPY (?!--from)(\S+) \S+$", dockerfile.read_text(), re.MULTILINE)
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert source == "." or any(fnmatch.fnmatch(source, pattern) for pattern in kept), source


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=by_file)
def test_an_image_has_the_pinned_torch_no_host_keys_and_an_unprivileged_user(
    dockerfile: Path,
) -> None:
    text = dockerfile.read_text()
    pins = (ROOT / "requirements" / "demo.txt").read_text()
    assert f"torch=={arguments(dockerfile)['TORCH_VERSION']}\n" in pins
    assert {"TORCH_VERSION", "TENSORFLOW_VERSION", "JAX_VERSION", "PYTHON_VERSION"} <= set(
        arguments(dockerfile)
    )
    installs = next(part for part in text.split("RUN ") if "openssh-server" in part)
    assert "rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*" in installs
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["1000"]


def test_the_compose_file_satisfies_the_schema_of_the_specification() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason=f"jsonschema {HINT}")
    try:
        files = importlib.metadata.files("docker-compose") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"docker-compose {HINT}")
    schema = json.loads(next(f for f in files if f.name == "compose_spec.json").read_text())
    compose = documents(ROOT / "docker/compose.yaml")[0]
    # The schema is of 2021; a name for all of it came later.
    assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*", compose.pop("name"))
    jsonschema.Draft7Validator(schema).validate(compose)
    compose["services"]["keys"]["restrat"] = "no"  # it does look
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate(compose)


def test_the_compose_file_is_consistent_in_itself_and_with_the_images() -> None:
    compose = documents(ROOT / "docker/compose.yaml")[0]
    services = compose["services"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        named = {mount.split(":")[0] for mount in service["volumes"]}
        assert named <= set(compose["volumes"])
        assert (ROOT / "docker" / service["build"]["context"]).resolve() == ROOT
    command = services["launcher"]["command"]
    hosts = command[command.index("-H") + 1].split(",")
    assert sum(int(host.split(":")[1]) for host in hosts) == int(command[command.index("-np") + 1])
    assert all(services[host.split(":")[0]]["hostname"] == host.split(":")[0] for host in hosts)
    for dockerfile in DOCKERFILES:
        assert arguments(dockerfile)["SSH_PORT"] == command[command.index("-p") + 1]
    assert (ROOT / command[-1].lstrip("/")).is_file()  # COPY examples /examples


def test_only_the_launcher_of_the_compose_file_sees_the_private_key() -> None:
    services = documents(ROOT / "docker/compose.yaml")[0]["services"]
    with_key = [
        name
        for name, service in services.items()
        if any(mount.startswith("launcher-keys:") for mount in service["volumes"])
    ]
    assert with_key == ["keys", "launcher"]


# --- Helm ------------------------------------------------------------------------------------------


def chart_values(**ssh: Any) -> dict[str, Any]:
    return {
        "ssh": ssh,
        "workers": {"replicas": 3, "slots": 4, "gpus": 4, "resources": {"limits": {"cpu": 8}}},
        "launcher": {"flags": ["--verbose"], "command": ["python", "train.py", "--lr", "0.1"]},
    }


def render(values: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """All objects of the chart by kind, from Helm itself."""
    helm = pytest.importorskip("helm_python", reason=f"helm-python-sdk {HINT}")
    objects: dict[str, list[dict[str, Any]]] = {}
    with helm.Chart.load(CHART) as chart:
        for name, text in chart.render(values, name="demo", namespace="research").items():
            for found in yaml.safe_load_all(text) if name.endswith(".yaml") else []:
                if found is not None:
                    objects.setdefault(found["kind"], []).append(found)
    return objects


@pytest.mark.parametrize(
    "values",
    [
        {"ssh": KEYS},
        {"ssh": {"existingSecret": "mine", "acceptNewHostKeys": False}},
        chart_values(**KEYS, hostKey="-----BEGIN\nh\n-----END\n", knownHosts="* ssh-ed25519 BBBB"),
    ],
    ids=["defaults", "existing secret", "everything"],
)
def test_the_chart_renders_to_valid_kubernetes_objects(values: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason=f"kubernetes-validate {HINT}")
    helm = pytest.importorskip("helm_python", reason=f"helm-python-sdk {HINT}")
    report = helm.lint(CHART, values, strict=True)
    assert report["errors"] == []
    assert [m for m in report["messages"] if m["severity"] > 1] == []  # 1: "an icon is recommended"
    objects = render(values)
    expected = {"ConfigMap", "Job", "Service", "StatefulSet"}
    if "existingSecret" not in values["ssh"]:
        expected.add("Secret")
    assert set(objects) == expected
    for found in [found for kind in objects.values() for found in kind]:
        validator.validate(copy.deepcopy(found), KUBERNETES, strict=True)


def test_the_job_of_the_chart_starts_every_process_on_the_workers_of_the_host_file() -> None:
    objects = render(chart_values(**KEYS))
    job, workers = objects["Job"][0], objects["StatefulSet"][0]
    args = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args == [
        *("horovodrun", "-np", "12", "-hostfile", "/etc/horovod/hosts/hostfile", "-p", "12345"),
        *("--ssh-accept-new-host-keys", "--verbose", "python", "train.py", "--lr", "0.1"),
    ]
    service = objects["Service"][0]["metadata"]["name"]
    assert workers["spec"]["serviceName"] == service
    assert objects["ConfigMap"][0]["data"]["hostfile"].splitlines() == [
        f"{workers['metadata']['name']}-{i}.{service}.research.svc slots=4" for i in range(3)
    ]
    labels = workers["spec"]["template"]["metadata"]["labels"]
    for selector in (
        objects["Service"][0]["spec"]["selector"],
        workers["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
        assert not selector.items() <= job["spec"]["template"]["metadata"]["labels"].items()
    container = workers["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"] == {"limits": {"cpu": 8, "nvidia.com/gpu": 4}}


def test_the_launcher_of_the_chart_can_do_something_else_than_a_job() -> None:
    args = ["horovodrun", "doctor", "-p", "12345"]
    job = render({"ssh": KEYS, "launcher": {"args": args}})["Job"][0]
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == args


def test_the_workers_of_the_chart_do_not_see_the_private_key() -> None:
    objects = render({"ssh": KEYS})
    seen = {
        kind: [
            item["key"]
            for volume in objects[kind][0]["spec"]["template"]["spec"]["volumes"]
            for item in volume.get("secret", {}).get("items", [])
        ]
        for kind in ("StatefulSet", "Job")
    }
    assert seen["StatefulSet"] == ["authorized_keys", "ssh_host_ed25519_key"]
    assert seen["Job"] == ["id_ed25519", "known_hosts"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "set ssh.existingSecret, or both ssh.authorizedKeys and ssh.privateKey"),
        ({"ssh": {**KEYS, "port": "ssh"}}, "at '/ssh/port': got string, want integer"),
        ({"ssh": KEYS, "workers": {"slotz": 2}}, "additional properties 'slotz' not allowed"),
        ({"ssh": KEYS, "workers": {"replicas": 0}}, "at '/workers/replicas'"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], message: str) -> None:
    helm = pytest.importorskip("helm_python", reason=f"helm-python-sdk {HINT}")
    with pytest.raises(helm.HelmError) as caught:
        render(values)
    assert message in str(caught.value)


# --- Kubeflow --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mpijob.yaml", "mpijob-v1.yaml"])
def test_an_mpijob_has_known_fields_and_valid_pods(name: str) -> None:
    job = documents(ROOT / "deploy" / "kubeflow" / name)[-1]
    assert job["kind"] == "MPIJob"
    assert set(job["spec"]) <= MPIJOB_FIELDS
    assert set(job["spec"]["runPolicy"]) <= RUN_POLICY_FIELDS
    replicas = job["spec"]["mpiReplicaSpecs"]
    assert set(replicas) == {"Launcher", "Worker"}
    args = replicas["Launcher"]["template"]["spec"]["containers"][0]["args"]
    slots = replicas["Worker"]["replicas"] * job["spec"]["slotsPerWorker"]
    assert int(args[args.index("-np") + 1]) == slots
    assert args[args.index("-hostfile") + 1] == "/etc/mpi/hostfile"
    validator = pytest.importorskip("kubernetes_validate", reason=f"kubernetes-validate {HINT}")
    for replica in replicas.values():
        assert set(replica) <= {"replicas", "restartPolicy", "template"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, **replica["template"]}
        validator.validate(copy.deepcopy(pod), KUBERNETES, strict=True)
