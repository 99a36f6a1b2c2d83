"""Run the demo: cluster, images, chart, InferenceService, one chat request through its Service."""

import argparse
import subprocess
import sys
import time
from typing import Any

import yaml

from hack.demo.chat import Answer, ask
from hack.install import OPERATOR_NAMESPACE, built_images, ensure_namespace, install_operator
from hack.kube import ROOT, ToolError, apply, condition, get, wait_until
from hack.progress import heading, paint, step

NAMESPACE = "demo"
SERVICE = "smollm2"
EXAMPLE = ROOT / "crds" / "examples" / "smollm2-cpu.yaml"
QUESTION = "What is the capital of France? Answer in one sentence."
READY_SECONDS = 900.0


def main() -> int:
    """Run every step in order; 0 when an answer came, 1 with the reason when not."""
    parser = argparse.ArgumentParser(
        prog="python -m hack.demo",
        description="Bring up the embedded cluster, install Forebay on it, serve SmolLM2-135M and ask it something.",
        epilog='example: make demo\n         .venv/bin/python -m hack.demo --question "Who wrote Faust?"',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--question", default=QUESTION, help="what to ask the model (default: %(default)s)")
    question: str = parser.parse_args().question
    started = time.monotonic()
    try:
        for module, arguments in (("hack.cluster", ["up"]), ("hack.images", ["all"])):
            subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, check=True)
        heading("Forebay")
        with step("namespace and model volume"):
            ensure_namespace(NAMESPACE)
            _run_quietly("hack.model", "--namespace", NAMESPACE)
        with step(f"helm install into {OPERATOR_NAMESPACE}"):
            install_operator()
        with step(f"kubectl apply {EXAMPLE.relative_to(ROOT)}"):
            apply(example_with_built_image(), NAMESPACE)
        wait_for_ready()
        answer = ask(NAMESPACE, SERVICE, question)
    except subprocess.CalledProcessError as failed:
        print(f"\ndemo: {' '.join(map(str, failed.cmd[1:]))} failed", file=sys.stderr)
        return 1
    except ToolError as failed:
        print(f"\ndemo: {failed}\n{why_not_ready()}", file=sys.stderr)
        return 1
    show(question, answer, time.monotonic() - started)
    return 0


def example_with_built_image() -> dict[str, Any]:
    """The example as it stands, marked so that a newly built engine image rolls a service that already runs."""
    manifest = dict(yaml.safe_load(EXAMPLE.read_text()))
    tag = built_images()["server"].rpartition(":")[2]
    manifest["metadata"]["annotations"] = {"serving.forebay.dev/restarted-at": tag}
    return manifest


def _run_quietly(module: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ToolError(f"{module}: {(done.stderr or done.stdout).strip()[-2000:]}")


def wait_for_ready() -> None:
    """Wait for the Ready condition of the current generation, showing each reason on the way as a step."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        reason = current_reason()
        if reason == "":
            return
        with step(f"InferenceService {SERVICE}: {reason}"):
            wait_for_change(reason)
        if time.monotonic() > deadline:
            raise ToolError(f"InferenceService {SERVICE} is not Ready after {READY_SECONDS:.0f} s")


def wait_for_change(reason: str) -> None:
    """Wait until the status gives another reason than this one."""
    wait_until(f"InferenceService {SERVICE} to leave {reason}", lambda: current_reason() != reason, READY_SECONDS, 0.3)


def current_reason() -> str:
    """Why the service is not Ready yet, as its status says; empty when it is."""
    service = get("infsvc", SERVICE, NAMESPACE)
    ready = condition(service, "Ready")
    generation = (service or {}).get("metadata", {}).get("generation")
    if not ready or ready.get("observedGeneration") != generation:
        return "Pending"
    return "" if ready["status"] == "True" else ready["reason"]


def why_not_ready() -> str:
    """The conditions of the service, one a line, for the person whose demo failed."""
    try:
        service = get("infsvc", SERVICE, NAMESPACE)
    except ToolError:
        return ""
    conditions = (service or {}).get("status", {}).get("conditions", [])
    return "\n".join(f"  {c['type']}={c['status']} {c['reason']}: {c.get('message', '')}" for c in conditions)


def show(question: str, answer: Answer, seconds: float) -> None:
    """Print the conversation, its speed and what to try next."""
    print(
        f"\n{paint('you', '1')}      {question}\n{paint('SmolLM2', '1')}  {answer.text.strip()}\n\n"
        f"{answer.num_tokens} tokens, first after {answer.seconds_to_first_token:.2f} s, "
        f"then {answer.tokens_per_second:.1f} tokens/s; the whole demo took {seconds:.0f} s\n\n"
        f"{paint('try next', '1')}\n"
        f"  export KUBECONFIG={ROOT}/.cluster/kubeconfig PATH={ROOT}/.cluster/bin:$PATH\n"
        f"  kubectl -n {NAMESPACE} get infsvc -o wide\n"
        f"  kubectl -n {NAMESPACE} get infsvc {SERVICE} -o jsonpath='{{.status.plan.explanation}}'\n"
        f"  kubectl -n {NAMESPACE} scale infsvc {SERVICE} --replicas 2\n"
        f"  curl {answer.base_url}/chat/completions -H 'Content-Type: application/json' \\\n"
        f'    -d \'{{"model": "{answer.model}", "messages": [{{"role": "user", "content": "Hello"}}]}}\'\n'
        "  make cluster-down"
    )


if __name__ == "__main__":
    sys.exit(main())
