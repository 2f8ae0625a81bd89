"""API keys over a real server: one session id, two keys, no way from one to the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AuthenticationError, OpenAI

from tests.serve.test_keys import ALICE, BOB, FILE, ROOT, bearer
from tests.support.server import Server, started

SHARED = "shared-id"
VIEWS = ("events", "residency", "residency?bins=4", "tokens", "steps", "messages")


@pytest.fixture(scope="module")
def keyed(protocol_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "keys").write_text(FILE)
    config = {
        # every address of the machine, which a server without keys refuses
        "http": {"host": "0.0.0.0"},
        "engine": {"model": str(protocol_model), "served_name": "protocol", "threads": 1},
        "graceful_shutdown_s": 1,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACE_API_KEYS_FILE", str(folder / "keys"))
        server = Server(folder, config)
    with started(server) as running:
        yield running


def say(server: Server, key: str, text: str, **pace: Any) -> Any:
    with OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60) as client:
        return client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": text}],
            max_tokens=4,
            extra_body={"pace": {"session_id": SHARED, **pace}},
        )


def get(server: Server, key: str, path: str) -> httpx.Response:
    return httpx.get(f"{server.url}/v1/sessions{path}", headers=bearer(key), timeout=60)


def _of(view: str, namespace: str) -> str:
    return f"/{SHARED}/{view}{'&' if '?' in view else '?'}namespace={namespace}"


@pytest.mark.timeout(240)
def test_two_keys_with_one_session_id_never_meet(keyed: Server) -> None:
    say(keyed, ALICE, "alice's secret")
    missing = get(keyed, BOB, f"/{SHARED}")
    assert missing.status_code == 404  # before Bob has one of his own
    for view in VIEWS:
        missing = get(keyed, BOB, f"/{SHARED}/{view}")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "session_not_found"
    assert httpx.delete(
        f"{keyed.url}/v1/sessions/{SHARED}", headers=bearer(BOB), timeout=60
    ).status_code == 404  # fmt: skip
    score = {"messages": [{"role": "user", "content": "?"}], "continuations": ["x"]}
    answer = httpx.post(
        f"{keyed.url}/v1/sessions/{SHARED}/score", json=score, headers=bearer(BOB), timeout=60
    )
    assert answer.status_code == 404
    say(keyed, BOB, "bob's own, and longer than the other one")
    alice = get(keyed, ALICE, f"/{SHARED}").json()
    bob = get(keyed, BOB, f"/{SHARED}").json()
    assert (alice["namespace"], bob["namespace"]) == ("alice", "bob")
    assert alice["turns"] == bob["turns"] == 1 and alice["tokens"] != bob["tokens"]
    assert [s["namespace"] for s in get(keyed, BOB, "").json()["data"]] == ["bob"]
    for view in VIEWS:
        own, other = (get(keyed, key, f"/{SHARED}/{view}").text for key in (ALICE, BOB))
        assert own != other
        assert get(keyed, ALICE, _of(view, "bob")).status_code == 403
        seen = get(keyed, ROOT, _of(view, "bob"))
        assert seen.text == other
    for key, own in ((ALICE, "alice's secret"), (BOB, "bob's own, and longer than the other one")):
        message = get(keyed, key, f"/{SHARED}/messages").json()["data"][0]
        assert message["preview"] == own
        text = "".join(get(keyed, key, f"/{SHARED}/tokens").json()["data"]["text"])
        assert own in text
    # a transcript without a session id is only looked for among the caller's own
    everyone = get(keyed, ROOT, "").json()["data"]
    assert sorted(s["namespace"] for s in everyone) == ["alice", "bob"]
    ambiguous = get(keyed, ROOT, f"/{SHARED}")
    assert ambiguous.status_code == 400 and ambiguous.json()["error"]["param"] == "namespace"
    assert get(keyed, ROOT, f"/{SHARED}?namespace=bob").json()["tokens"] == bob["tokens"]
    assert get(keyed, ALICE, f"/{SHARED}?namespace=bob").status_code == 403
    gone = httpx.delete(
        f"{keyed.url}/v1/sessions/{SHARED}?namespace=bob", headers=bearer(ROOT), timeout=60
    )
    assert gone.status_code == 200
    assert get(keyed, BOB, f"/{SHARED}").status_code == 404
    # with one left an admin need not say whose
    assert get(keyed, ROOT, f"/{SHARED}").json()["namespace"] == "alice"


def test_a_wrong_key_is_refused_in_the_client_librarys_own_way(keyed: Server) -> None:
    with pytest.raises(AuthenticationError, match="No API key of this server"):
        say(keyed, "sk-wrong-wrong-wrong", "hello")
    assert httpx.get(f"{keyed.url}/health", timeout=60).status_code == 200


def test_no_key_reaches_the_log(keyed: Server) -> None:
    say(keyed, ALICE, "a turn that is logged", mode="append")
    for key in (ALICE, BOB, ROOT, "alice's secret", "bob's own"):
        assert key not in keyed.stderr and key not in keyed.stdout
