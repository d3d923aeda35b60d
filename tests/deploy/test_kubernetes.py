"""The manifests for Kubernetes: built by kustomize, valid for the API, in agreement with cluster files, the image and each other."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from broker.config.cluster_file import ClusterConfig
from broker.config.values import split_address
from broker.main import STOP_GRACE_S
from dledger_cli.commands.node import check_files
from tests.deploy.kustomization import KUBERNETES, ROOT, Overlay, built, container_of, pod_of

GUIDE = ROOT / "docs" / "guides" / "deploy" / "kubernetes.md"
SETS = {"dledger": "node", "dledger-ns": "nameserver"}
IN_POD = "/etc/dledger"
VERSIONS = ("1.29", "1.37")  # the first with all that is used here, and the newest known

pytestmark = pytest.mark.xdist_group("kubernetes")


@pytest.fixture(scope="module")
def production(module_folder: Path) -> tuple[Path, Overlay]:
    """The overlay as an operator has it: in a copy, after the commands of the guide.  Its folder, and what is built."""
    folder = module_folder / "kubernetes"
    shutil.copytree(KUBERNETES, folder)
    overlay = folder / "overlays" / "production"
    blocks = re.findall(r"^<!-- kubernetes -->\n```sh\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    path = f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    done = subprocess.run(
        ["bash", "-euc", blocks[0]], cwd=overlay, env={"PATH": path, "HOME": str(folder)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return overlay, built(overlay)


@pytest.fixture(scope="module")
def dev() -> Overlay:
    return built(KUBERNETES / "overlays" / "dev")


@pytest.fixture(scope="module")
def rocketmq(module_folder: Path) -> Overlay:
    """The overlay dev with the component for RocketMQ's clients, and the line of the cluster file that the component names."""
    folder = module_folder / "with-rocketmq"
    shutil.copytree(KUBERNETES, folder)
    said = (folder / "components" / "rocketmq" / "kustomization.yaml").read_text(encoding="utf-8")
    component, line = re.findall(r"^#   (\w+: .*)$", said, re.MULTILINE)
    overlay = folder / "overlays" / "dev"
    for name, more in (("kustomization.yaml", component), ("cluster.yaml", line)):
        file = overlay / name
        file.write_text(f"{file.read_text(encoding='utf-8')}{more}\n", encoding="utf-8")
    return built(overlay)


@pytest.fixture(params=["dev", "production", "rocketmq"])
def overlay(request: pytest.FixtureRequest) -> Overlay:
    found = request.getfixturevalue(request.param)
    return found if isinstance(found, Overlay) else found[1]


@pytest.fixture
def cluster(overlay: Overlay) -> ClusterConfig:
    return ClusterConfig.parse(overlay.cluster_text, f"{IN_POD}/cluster.yaml")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_api_takes_every_object(overlay: Overlay, version: str) -> None:
    kinds = [each["kind"] for each in overlay.objects]
    for each in overlay.objects:
        kubernetes_validate.validate(each, version, strict=True)
    assert kinds.count("StatefulSet") == kinds.count("PodDisruptionBudget") == kinds.count("NetworkPolicy") == 2
    namespaces = {each["metadata"].get("namespace") for each in overlay.objects if each["kind"] not in ("Namespace", "StorageClass")}
    assert namespaces == set(overlay.of("Namespace"))


def test_ids_and_addresses_are_those_of_the_pods(overlay: Overlay, cluster: ClusterConfig) -> None:
    (namespace,) = overlay.of("Namespace")
    nodes = {node.id: node.address for _, node in cluster.all_nodes()}
    servers = {server.id: server.address for server in cluster.name_server_processes}
    for name, found in (("dledger", nodes), ("dledger-ns", servers)):
        workload = overlay.of("StatefulSet")[name]
        pods = [f"{name}-{number}" for number in range(workload["spec"]["replicas"])]
        service = workload["spec"]["serviceName"]
        port = next(each["port"] for each in overlay.of("Service")[service]["spec"]["ports"] if each["name"] != "metrics")
        assert found == {pod: f"{pod}.{service}.{namespace}.svc.cluster.local:{port}" for pod in pods}
        container = container_of(workload)
        assert container["args"] == [SETS[name], "--config", f"{IN_POD}/cluster.yaml", "--id", "$(POD_NAME)", "--data", "/var/lib/dledger"]
        assert container["env"] == [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]


def _ports_of(cluster: ClusterConfig, name: str) -> set[int]:
    """Where the first pod of a StatefulSet listens; every address of its pod is among them."""
    addresses = cluster.addresses_of(f"{name}-0")
    assert all(split_address(address)[0] == "0.0.0.0" for address in addresses), "a pod's name may lead nowhere yet when it starts"
    return {split_address(address)[1] for address in addresses}


def test_ports_are_those_of_the_cluster_file(overlay: Overlay, cluster: ClusterConfig) -> None:
    for name in SETS:
        wanted = _ports_of(cluster, name)
        assert {port["containerPort"] for port in container_of(overlay.of("StatefulSet")[name])["ports"]} == wanted
        service = overlay.of("Service")[name]["spec"]
        assert service["clusterIP"] == "None"
        assert service["publishNotReadyAddresses"], "replicas have to reach a pod that is not ready"
        assert {port["port"] for port in service["ports"]} == wanted
        rules = overlay.of("NetworkPolicy")[name]["spec"]["ingress"]
        assert {port["port"] for rule in rules for port in rule["ports"]} == wanted
        assert all(rule["from"] for rule in rules), "a rule without peers lets everybody in"


def test_a_component_opens_the_ports_for_rocketmqs_clients(rocketmq: Overlay, dev: Overlay) -> None:
    before, cluster = (ClusterConfig.parse(each.cluster_text, "cluster.yaml") for each in (dev, rocketmq))
    assert [_ports_of(cluster, name) - _ports_of(before, name) for name in SETS] == [{10921}, {9877}]
    for policy, port in (("dledger", 10911), ("dledger-ns", 9876)):
        rules = rocketmq.of("NetworkPolicy")[policy]["spec"]["ingress"]
        assert port in [each["port"] for each in rules[0]["ports"]], "those who reach the native port reach it"
        assert len(rules[0]["ports"]) == 2


def test_selectors_select_the_pods(overlay: Overlay) -> None:
    for name in SETS:
        workload = overlay.of("StatefulSet")[name]["spec"]
        labels = workload["template"]["metadata"]["labels"].items()
        budget = overlay.of("PodDisruptionBudget")[name]["spec"]
        selectors = [
            workload["selector"]["matchLabels"],
            overlay.of("Service")[name]["spec"]["selector"],
            overlay.of("NetworkPolicy")[name]["spec"]["podSelector"]["matchLabels"],
            budget["selector"]["matchLabels"],
        ]
        assert all(labels >= selector.items() for selector in selectors), name
        assert budget["maxUnavailable"] == 1
        other = overlay.of("StatefulSet")[next(iter(SETS.keys() - {name}))]["spec"]["template"]["metadata"]["labels"].items()
        assert not any(other >= selector.items() for selector in selectors), f"{name} selects pods of the other one, too"
    ready = overlay.of("Service")["dledger-bootstrap"]["spec"]
    assert ready["selector"] == overlay.of("Service")["dledger"]["spec"]["selector"]
    assert "publishNotReadyAddresses" not in ready


def test_probes_ask_the_metrics_port_as_it_speaks(overlay: Overlay, cluster: ClusterConfig) -> None:
    scheme = "HTTPS" if cluster.security is not None and cluster.security.tls is not None and cluster.metrics.tls else "HTTP"
    assert cluster.metrics.address is not None
    for name in SETS:
        container = container_of(overlay.of("StatefulSet")[name])
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for probe, path in (("livenessProbe", "/livez"), ("startupProbe", "/livez"), ("readinessProbe", "/readyz")):
            asked = container[probe]["httpGet"]
            assert asked["path"] == path
            assert ports[asked["port"]] == split_address(cluster.metrics.address)[1]
            assert asked.get("scheme", "HTTP") == scheme
        assert container["livenessProbe"]["failureThreshold"] * container["livenessProbe"]["periodSeconds"] >= 60
    startup = container_of(overlay.of("StatefulSet")["dledger"])["startupProbe"]
    assert startup["failureThreshold"] * startup["periodSeconds"] >= 3600


def test_a_pod_has_the_time_to_hand_leadership_over(overlay: Overlay) -> None:
    workload = overlay.of("StatefulSet")["dledger"]
    waits = int(container_of(workload)["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod_of(workload)["terminationGracePeriodSeconds"] >= waits + 2 * STOP_GRACE_S
    assert workload["spec"]["podManagementPolicy"] == "Parallel"
    assert workload["spec"]["minReadySeconds"] > 0


def _restricted(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod["automountServiceAccountToken"]
    assert container["resources"]["limits"]["memory"]


def test_pods_are_restricted_and_write_where_the_image_may(overlay: Overlay) -> None:
    workloads = [*overlay.of("StatefulSet").values(), *overlay.of("Deployment").values()]
    image = (ROOT / "cluster-configs" / "containers" / "Containerfile").read_text(encoding="utf-8")
    user = re.search(r"^USER (\d+):(\d+)$", image, re.MULTILINE)
    assert user
    for workload in workloads:
        pod, container = pod_of(workload), container_of(workload)
        _restricted(pod, container)
        context = pod["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (int(user[1]), int(user[2]), int(user[2]))
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert set(mounts) == {"/var/lib/dledger", IN_POD, "/tmp"}
        assert mounts[IN_POD]["readOnly"]
    (namespace,) = overlay.of("Namespace").values()
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_every_object_that_a_pod_names_is_there(overlay: Overlay) -> None:
    """But the Secret, which no file may hold."""
    (config,) = overlay.of("ConfigMap")
    assert re.fullmatch(r"dledger-cluster-\w{10}", config), "without a digest in the name a change would restart nothing"
    for workload in overlay.of("StatefulSet").values():
        assert pod_of(workload)["serviceAccountName"] in overlay.of("ServiceAccount")
        volumes = {volume["name"]: volume for volume in pod_of(workload)["volumes"]}
        assert volumes["config"]["projected"]["sources"] == [{"configMap": {"name": config}}, {"secret": {"name": "dledger-secrets"}}]
        assert not volumes["config"]["projected"]["defaultMode"] & 0o037
    assert not overlay.of("Secret")


def test_production_keeps_replicas_apart_on_disks_that_stay(production: tuple[Path, Overlay]) -> None:
    overlay = production[1]
    for name, workload in overlay.of("StatefulSet").items():
        (apart,) = pod_of(workload)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert apart["topologyKey"] == "kubernetes.io/hostname"
        assert workload["spec"]["template"]["metadata"]["labels"].items() >= apart["labelSelector"]["matchLabels"].items(), name
        (claim,) = workload["spec"]["volumeClaimTemplates"]
        assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
        storage = overlay.of("StorageClass")[claim["spec"]["storageClassName"]]
        assert (storage["reclaimPolicy"], storage["volumeBindingMode"]) == ("Retain", "WaitForFirstConsumer")
    (zones,) = pod_of(overlay.of("StatefulSet")["dledger"])["topologySpreadConstraints"]
    assert zones["topologyKey"] == "topology.kubernetes.io/zone"


def test_the_guide_makes_the_secret_that_production_needs(production: tuple[Path, Overlay], tmp_path: Path) -> None:
    """Every pod's checks pass with the files laid out as in a pod: those of the Secret beside the cluster file, and no other ones."""
    folder, overlay = production
    assert "create secret generic dledger-secrets --from-file=secrets/pods\n" in GUIDE.read_text(encoding="utf-8")
    pod = tmp_path / "etc"
    shutil.copytree(folder / "secrets" / "pods", pod)
    assert not (pod / "ca.key").exists()
    (pod / "cluster.yaml").write_text(overlay.cluster_text, encoding="utf-8")
    config = ClusterConfig.load(str(pod / "cluster.yaml"))
    assert config.security is not None
    assert config.security.users is not None
    for file in pod.iterdir():
        file.chmod(0o440)  # as the kubelet makes them: of root, and readable by the pod's group
    for number in range(3):
        check_files(config, f"dledger-{number}")
        assert config.name_server(f"dledger-ns-{number}").password()


def test_production_without_the_guide_is_not_for_use() -> None:
    """The shipped cluster file is complete but for what has to be secret; name servers then refuse to start without a password."""
    config = ClusterConfig.load(str(KUBERNETES / "overlays" / "production" / "cluster.yaml"))
    assert config.security is None
    assert config.name_server("dledger-ns-0").password() is None
    assert not config.name_server("dledger-ns-0").is_local
