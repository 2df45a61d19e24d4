// Life for pages that work without it: events, following output, questions before a change, keys.
"use strict";
(() => {
  const main = () => document.getElementById("main");
  const status = (word, text, lost) => {
    const place = document.getElementById("live");
    if (!place) return;
    place.classList.toggle("lost", Boolean(lost));
    place.replaceChildren(Object.assign(document.createElement("b"), { textContent: word }), text);
  };
  const clock = () => new Date().toLocaleTimeString("en-GB");

  // -- events -------------------------------------------------------------------------------------
  let stream = null, poll = 0, last = "", isFollowing = false;
  const show = (page) => {
    const ticked = [...document.querySelectorAll("input[type=checkbox]:checked")].map((box) => box.id);
    const open = [...document.querySelectorAll("details[open]")].map((place) => place.id);
    document.title = page.title; const note = document.getElementById("note");
    if (page.icon) document.querySelector("link[rel=icon]").href = page.icon;
    htmx.swap({ text: page.main, target: main(), swap: "innerMorph", sourceElement: document.body }).then(() => {
      for (const id of ticked) { const box = document.getElementById(id); if (box) box.checked = true; }
      for (const id of open) { const place = document.getElementById(id); if (place) place.open = true; }
      enliven(); if (note && !document.getElementById("note")) main().prepend(note);
      if (!isFollowing && document.getElementById("out")?.dataset.end) { close(); listen(); }
    });
    last = page.clock;
    status("live", `, last change ${last}`);
  };
  const output = (part) => {
    const place = document.getElementById("out");
    if (!place) return;
    const isAtEnd = place.scrollTop + place.clientHeight >= place.scrollHeight - 4;
    if (part.new) place.textContent = "";
    place.append(part.text);
    if (place.textContent.length > 1 << 20) place.textContent = place.textContent.slice(-(1 << 19));
    if (isAtEnd) place.scrollTop = place.scrollHeight;
    Object.assign(place.dataset, { device: part.device, inode: part.inode, end: part.end });
  };
  const address = () => {
    const query = new URLSearchParams({ page: location.pathname + location.search });
    const place = document.getElementById("out");
    isFollowing = Boolean(place?.dataset.end);
    if (isFollowing) {
      query.set("at", [place.dataset.device, place.dataset.inode, place.dataset.end].join("."));
    }
    return `/live?${query}`;
  };
  const listen = () => {
    if (stream || !document.body.dataset.live || !window.EventSource) return;
    stream = new EventSource(address());
    stream.addEventListener("page", (event) => show(JSON.parse(event.data)));
    stream.addEventListener("output", (event) => output(JSON.parse(event.data)));
    stream.addEventListener("ended", () => { close(); status("session ended", `, ${clock()}`, true); });
    stream.addEventListener("error", () => {
      status(`not live since ${clock()}`, "", true);
      if (stream && stream.readyState === EventSource.CLOSED) { close(); poll = setTimeout(listen, 10000); }
    });
  };
  const close = () => { stream?.close(); stream = null; clearTimeout(poll); };
  // A browser has few connections to one host: a page in the background has none, and asks each minute.
  const glance = async () => {
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (answer.ok) document.title = page.title;
    } catch { /* it is tried again */ }
    poll = setTimeout(glance, 60000);
  };
  document.addEventListener("visibilitychange", () => {
    close();
    if (document.hidden) poll = setTimeout(glance, 60000); else listen();
  });

  // -- forms --------------------------------------------------------------------------------------
  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.ask || event.target.dataset.ask;
    if (!question || event.target.elements.sure) return;
    if (!confirm(question)) { event.preventDefault(); return; }
    event.target.append(Object.assign(document.createElement("input"), { type: "hidden", name: "sure", value: "1" }));
  });
  document.addEventListener("click", (event) => {
    const source = event.target.closest("[data-copy]")?.dataset.copy;
    if (source) navigator.clipboard.writeText(document.getElementById(source).textContent);
  });
  const enliven = () => {
    for (const button of document.querySelectorAll("[data-copy][hidden]")) button.hidden = false;
    document.querySelectorAll("[data-row]")[row]?.classList.add("here");
  };

  // -- keys: they move and open; only a form changes something ---------------------------------------
  let row = -1, isGoing = false;
  const pages = { n: "/", q: "/queue", s: "/submit", r: "/reports" };
  const move = (step) => {
    const rows = [...document.querySelectorAll("[data-row]")];
    if (!rows.length) return;
    rows[row]?.classList.remove("here");
    row = Math.max(0, Math.min(rows.length - 1, row + step));
    rows[row].classList.add("here");
    rows[row].querySelector("a").focus();
  };
  const go = (path) => document.querySelector(`a[href="${path}"]`)?.click();
  const keys = {
    j: () => move(1), k: () => move(-1), g: () => { isGoing = true; },
    "/": () => { const field = document.getElementById("q"); if (field) field.focus(); else go("/queue"); },
    c: () => document.querySelector("form[action='/jobs/cancel'][data-ask] button")?.click(),
    "?": () => go("/help"),
  };
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input:not([type=checkbox]), textarea, select");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = isGoing && pages[event.key] ? () => go(pages[event.key]) : keys[event.key];
    isGoing = false;
    if (act) { act(); event.preventDefault(); }
  });

  const out = document.getElementById("out");
  if (out) out.scrollTop = out.scrollHeight;
  enliven();
  if (!document.hidden) listen();
})();
