"use strict";

// The page looks again every few seconds; when the server does not answer, what it said last stays, and a line says so.
const seconds = Number(document.documentElement.dataset.refresh);
async function look() {
  const silent = document.getElementById("silent");
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.getElementById("all").replaceWith(next.getElementById("all"));
    document.title = next.title;
    silent.hidden = true;
  } catch {
    silent.hidden = false;
  }
  setTimeout(look, 1000 * seconds);
}
setTimeout(look, 1000 * seconds);
