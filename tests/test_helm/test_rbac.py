"""The chart grants exactly what the operator needs: rights.py is the list that both follow."""

from collections.abc import Iterable

import pytest

from forebay_operator.rights import RIGHTS, Right
from tests.test_helm.chart import Manifest, of_kind, only, render

NAME = "forebay-operator"
Grant = tuple[str, str, str]


def needed(rights: Iterable[Right]) -> set[Grant]:
    return {(right.group, right.resource, verb) for right in rights for verb in right.verbs}


def granted(role: Manifest) -> set[Grant]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_watching_everything_one_cluster_role_grants_exactly_the_rights() -> None:
    manifests = render()
    assert granted(only(manifests, "ClusterRole", NAME)) == needed(RIGHTS)
    assert not of_kind(manifests, "Role")


def test_the_right_to_read_nodes_can_be_left_out() -> None:
    role = only(render("rbac.readNodes=false"), "ClusterRole", NAME)
    assert granted(role) == needed(r for r in RIGHTS if r.resource != "nodes")
    assert not [right for right in RIGHTS if right.resource == "nodes" and right.required]


def test_watching_some_namespaces_only_cluster_scoped_kinds_are_granted_everywhere() -> None:
    manifests = render("watchNamespaces={team-a,team-b}")
    assert granted(only(manifests, "ClusterRole", NAME)) == needed(r for r in RIGHTS if r.cluster_scoped)
    roles = of_kind(manifests, "Role")
    assert [role["metadata"]["namespace"] for role in roles] == ["team-a", "team-b"]
    for role in roles:
        assert granted(role) == needed(r for r in RIGHTS if not r.cluster_scoped)


@pytest.mark.parametrize("settings", [[], ["watchNamespaces={team-a}"]])
def test_each_role_of_the_operator_is_bound_to_its_service_account(settings: list[str]) -> None:
    manifests = render(*settings, namespace="elsewhere")
    account = only(manifests, "ServiceAccount")
    assert only(manifests, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == NAME
    bindings = of_kind(manifests, "ClusterRoleBinding") + of_kind(manifests, "RoleBinding")
    assert len(bindings) == 1 + len(settings)
    for binding in bindings:
        assert binding["roleRef"]["name"] == NAME
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": "elsewhere"}
        ]


def test_no_role_has_a_wildcard_or_reads_secrets() -> None:
    manifests = render()
    for role in of_kind(manifests, "ClusterRole"):
        for group, resource, verb in granted(role):
            assert "*" not in (group, resource, verb)
            assert resource != "secrets"


def test_people_get_the_custom_resources_with_their_usual_roles() -> None:
    manifests = render()
    view, edit = only(manifests, "ClusterRole", f"{NAME}-view"), only(manifests, "ClusterRole", f"{NAME}-edit")
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    assert {k for k in view["metadata"]["labels"] if k.startswith(prefix)} == {
        f"{prefix}{role}" for role in ("view", "edit", "admin")
    }
    assert {k for k in edit["metadata"]["labels"] if k.startswith(prefix)} == {
        f"{prefix}{role}" for role in ("edit", "admin")
    }
    assert {verb for _, _, verb in granted(view)} == {"get", "list", "watch"}
    assert not [grant for grant in granted(edit) if "acceleratorprofiles" in grant[1]]


def test_roles_can_be_left_to_others() -> None:
    manifests = render("rbac.create=false", "rbac.aggregate=false", "serviceAccount.create=false")
    assert not [m for m in manifests if m["kind"] in ("ClusterRole", "Role", "ClusterRoleBinding", "ServiceAccount")]
    assert only(manifests, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "default"
