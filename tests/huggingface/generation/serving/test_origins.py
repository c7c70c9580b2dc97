"""Pages of other origins read answers only if the endpoint allows it; in a browser, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from coreai_onnx.huggingface.generation.serving.endpoint import endpoint
from tests.examples.test_web import serving
from tests.netron.viewer import browser_path
from tests.support.endpoints import CHAT, CHATS, GREEDY, on_a_port

PAGE = """<!doctype html><pre id="result"></pre><script>
async function ask(address, body) {
  const shown = document.getElementById("result");
  try {
    const answer = await fetch(address, {
      method: "POST", headers: {"content-type": "application/json"}, body: JSON.stringify(body),
    });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "", pieces = 0, rest = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const events = (rest + part.value).split("\\n\\n");
      rest = events.pop();
      for (const event of events.filter((one) => one !== "data: [DONE]")) {
        text += JSON.parse(event.slice(6)).choices[0].delta.content ?? "";
        pieces += 1;
      }
    }
    return {text, pieces};
  } catch (error) {
    return {error: String(error)};
  }
}
</script>"""


def test_headers(models: Any) -> None:
    preflight = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type",
    }
    for allowed, status, header in (
        ((), 405, None),
        (("http://localhost:3000",), 200, "http://localhost:3000"),
        (("http://localhost:3001",), 400, None),
        (("*",), 200, "*"),
    ):
        with TestClient(endpoint(models[0], "llama", allow_origins=allowed)) as client:
            origin = {"origin": "http://localhost:3000"}
            response = client.options(CHATS, headers={**origin, **preflight})
            assert response.status_code == status
            assert response.headers.get("access-control-allow-origin") == header
            answer = client.post(CHATS, json={"messages": CHAT, **GREEDY}, headers=origin)
            assert answer.headers.get("access-control-allow-origin") == header
            # A page reads errors, too.
            wrong = client.post(CHATS, json={}, headers=origin)
            assert wrong.headers.get("access-control-allow-origin") == header


@pytest.mark.slow
def test_a_page_streams_a_chat(models: Any, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    (tmp_path / "index.html").write_text(PAGE)
    asked = {"messages": CHAT, **GREEDY}
    arguments = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]
    with serving(tmp_path) as origin, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=browser_path(), headless=True, args=arguments
        )
        page = chromium.new_page()
        page.goto(origin)

        def shown(*allowed: str) -> dict[str, Any]:
            app = endpoint(models[0], "llama", allow_origins=allowed)
            with on_a_port(app) as address:
                body = {**asked, "stream": True}
                call = "([address, body]) => ask(address, body)"
                found: dict[str, Any] = page.evaluate(call, [f"{address}{CHATS}", body])
                return found

        result = shown(origin)
        assert "Failed to fetch" in shown()["error"]
        assert "Failed to fetch" in shown("http://127.0.0.1:1")["error"]
        chromium.close()
    with TestClient(endpoint(models[0], "llama")) as client:
        answer = client.post(CHATS, json=asked).json()["choices"][0]["message"]["content"]
    assert result["text"] == answer
    assert result["pieces"] > 8
