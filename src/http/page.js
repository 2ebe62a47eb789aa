"use strict";
// The server draws; this only asks for the drawing again when the stream says that something changed, and lets the
// lease run down in between.
let leaseEnd = 0;
let asking = false;
let askAgain = false;

const part = (id) => document.getElementById(id);
const seconds = (millis) => (millis / 1000).toFixed(1) + " s";

function arm() {
  const bar = part("lease");
  leaseEnd = bar ? performance.now() + bar.value : 0;
}

function runDown() {
  const bar = part("lease");
  if (bar) {
    const left = Math.max(0, leaseEnd - performance.now());
    bar.value = left;
    part("left").textContent = seconds(left);
  }
  requestAnimationFrame(runDown);
}

async function draw() {
  if (asking) {
    askAgain = true;
    return;
  }
  asking = true;
  try {
    const answer = await fetch("./", { headers: { accept: "text/html" }, cache: "no-store" });
    // Only the part that changes is parsed: style and script of another answer have another nonce.
    const changing = (await answer.text()).split(/(?=<div id="status"|<h2 id="more")/)[1] ?? "";
    const next = new DOMParser().parseFromString(changing, "text/html").getElementById("status");
    if (answer.ok && next) {
      const before = part("status").dataset.who;
      part("status").replaceWith(document.adoptNode(next));
      arm();
      part("live").textContent = "Live";
      // Read aloud at a change of leader only, and not at each extend.
      if (next.dataset.who !== before) part("said").textContent = next.querySelector(".who").textContent;
    }
  } catch {
    away();
  } finally {
    asking = false;
    if (askAgain) {
      askAgain = false;
      draw();
    }
  }
}

function away() {
  part("live").textContent = "Not connected: what is below was so at " + part("status").dataset.at;
}

function listen() {
  const stream = new EventSource("leader/stream");
  stream.onmessage = draw;
  stream.onerror = () => {
    away();
    // The browser connects again by itself unless it was refused, as when too many listen.
    if (stream.readyState === EventSource.CLOSED) setTimeout(() => { draw(); listen(); }, 2000);
  };
}

arm();
runDown();
listen();
