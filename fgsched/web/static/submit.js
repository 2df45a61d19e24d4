// The forecast of the form, asked 400 ms after the last key, with at most one request under way.
"use strict";
(() => {
  const form = document.getElementById("submission");
  let timer = 0, isAsking = false, isNew = false;
  const take = (text) => {
    const page = new DOMParser().parseFromString(text, "text/html");
    for (const part of page.querySelectorAll("[data-part]")) {
      const place = document.getElementById(part.id);
      if (place && place.innerHTML !== part.innerHTML) place.replaceChildren(...part.childNodes);
    }
    for (const field of form.querySelectorAll("[aria-describedby]")) {
      field.toggleAttribute("aria-invalid", page.getElementById(field.id)?.hasAttribute("aria-invalid") ?? false);
    }
    for (const button of form.querySelectorAll("[data-copy][hidden]")) button.hidden = false;
  };
  const ask = async () => {
    if (isAsking) { isNew = true; return; }
    isAsking = true; isNew = false;
    try {
      const answer = await fetch("/submit/forecast", { method: "POST", body: new URLSearchParams(new FormData(form)) });
      const text = await answer.text();
      if (answer.ok) take(text);
      else {
        const page = new DOMParser().parseFromString(text, "text/html");
        document.getElementById("forecast").textContent = page.querySelector("main")?.innerText ?? answer.statusText;
      }
    } catch { document.getElementById("forecast").textContent = "The page does not answer: run fgsched web again."; }
    isAsking = false;
    if (isNew) ask();
  };
  const later = () => { clearTimeout(timer); timer = setTimeout(ask, 400); };
  form.addEventListener("input", later);
  form.addEventListener("submit", (event) => {
    const button = event.submitter;
    if (!button?.formAction.endsWith("/submit/forecast")) return;
    event.preventDefault();
    const [name, ...value] = button.name === "set" ? button.value.split("=") : [];
    if (name) document.getElementById(`f-${name}`).value = value.join("=");
    clearTimeout(timer);
    ask();
  });
  if (document.getElementById("f-script").value || document.getElementById("f-text").value) later();
})();
