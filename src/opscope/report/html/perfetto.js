"use strict";
// Hands the trace to Perfetto's page in another window: it answers PING with PONG once it listens.
// https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui
(() => {
  const ORIGIN = "https://ui.perfetto.dev";
  const PATIENCE_MS = 60000;
  const button = document.getElementById("perfetto");
  const say = (text) => { document.getElementById("handed").textContent = text; };
  const listens = (opened) => new Promise((resolve, reject) => {
    const began = Date.now();
    const ping = setInterval(() => {
      if (opened.closed || Date.now() - began > PATIENCE_MS) end(() => reject(new Error("Perfetto does not answer")));
      else opened.postMessage("PING", "*");
    }, 100);
    const hear = ({ origin, source, data }) => {
      if (origin === ORIGIN && source === opened && data === "PONG") end(resolve);
    };
    const end = (settle) => {
      clearInterval(ping);
      removeEventListener("message", hear);
      settle();
    };
    addEventListener("message", hear);
  });
  const trace = async () => {
    const answer = await fetch(button.dataset.trace).catch(() => null);
    if (!answer?.ok) throw new Error("The trace is gone: is opscope still running?");
    return answer.arrayBuffer();
  };
  button.addEventListener("click", async () => {
    const opened = open(ORIGIN);
    if (!opened) {
      say("The browser does not let the page open a window");
      return;
    }
    say("Waiting for Perfetto …");
    try {
      const [buffer] = await Promise.all([trace(), listens(opened)]);
      const { title, trace: fileName } = button.dataset;
      opened.postMessage({ perfetto: { buffer, title, fileName } }, ORIGIN, [buffer]);
      say("Perfetto has the trace");
    } catch (error) {
      say(error.message);
    }
  });
})();
