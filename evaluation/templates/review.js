// Marks of the cases on a hospital's own page: agree, disagree or unsure, and a note. They go to `consilium review` on
// the same machine, which served this page, and nowhere else.
{
  const OPINIONS = ["agree", "disagree", "unsure"];
  const PAUSE_MS = 800; // after the last key of a note it is saved
  const summary = document.querySelector("#reviewed");
  for (const link of document.querySelectorAll("a[href^='../']")) link.replaceWith(link.textContent); // it shows no other page
  let reviewer = "";
  let last = Promise.resolve(); // one after the other, so that the newest is written last
  const waiting = new Map(); // cases whose note is not saved yet -> the timer that will save it

  async function ask(path, options) {
    const reply = await fetch(path, options);
    const answer = await reply.json();
    if (!reply.ok) throw new Error(answer.error);
    return answer;
  }

  function makeElement(tag, values, ...children) {
    const element = Object.assign(document.createElement(tag), values);
    element.append(...children);
    return element;
  }

  // The controls of a case: three choices, a note, and whether it is saved.
  function addControls(article, number) {
    const box = makeElement("fieldset", { className: "opinion" });
    box.append(makeElement("legend", { textContent: `What do you think of case ${number}?` }));
    for (const opinion of OPINIONS) {
      const choice = makeElement("input", { type: "radio", name: `opinion-${number}`, value: opinion });
      choice.addEventListener("change", () => save(article));
      box.append(makeElement("label", {}, choice, opinion));
    }
    const remove = makeElement("button", { type: "button", textContent: "remove the mark", ariaLabel: `remove the mark of case ${number}` });
    remove.addEventListener("click", () => {
      for (const choice of box.querySelectorAll("[type=radio]")) choice.checked = false;
      save(article, true);
    });
    const note = makeElement("textarea", { rows: 2, maxLength: 4000 });
    const saveSoon = (pause) => {
      clearTimeout(waiting.get(article));
      waiting.set(article, setTimeout(() => save(article), pause));
    };
    note.addEventListener("input", () => saveSoon(PAUSE_MS));
    note.addEventListener("change", () => saveSoon(0));
    box.append(remove, makeElement("label", { className: "words" }, "Note", note));
    box.append(makeElement("output", {}), makeElement("ul", { className: "others" }));
    article.append(box);
  }

  function buildRequest(article, opinion, note) {
    const body = JSON.stringify({ case: article.dataset.case, opinion, note });
    return { method: "POST", headers: { "Content-Type": "application/json" }, body, keepalive: true };
  }

  // Who leaves the page before a note is saved: it is saved still, or, if nothing was chosen, the browser asks.
  addEventListener("pagehide", () => {
    for (const article of waiting.keys()) {
      const opinion = article.querySelector(":checked")?.value;
      const note = article.querySelector("textarea").value;
      if (opinion) fetch("marks", buildRequest(article, opinion, note));
    }
    waiting.clear();
  });
  addEventListener("beforeunload", (event) => {
    const isLost = (article) => !article.querySelector(":checked") && article.querySelector("textarea").value.trim();
    if ([...document.querySelectorAll("article.case")].some(isLost)) event.preventDefault();
  });

  function save(article, removes = false) {
    const opinion = article.querySelector(":checked")?.value ?? "";
    const outcome = article.querySelector("output");
    if (!opinion && !removes) {
      outcome.textContent = "not saved: choose agree, disagree or unsure";
      return;
    }
    clearTimeout(waiting.get(article));
    waiting.delete(article);
    const options = buildRequest(article, opinion, removes ? "" : article.querySelector("textarea").value);
    outcome.textContent = "saving";
    last = last.then(() => ask("marks", options)).then(
      (answer) => {
        outcome.textContent = removes ? "removed" : "saved";
        if (removes) article.querySelector("textarea").value = "";
        show(answer);
      },
      (error) => {
        outcome.textContent = `not saved: ${error.message}`;
      },
    );
  }

  // The summary, and what other reviewers marked.
  function show(answer) {
    reviewer = answer.reviewer;
    summary.textContent = answer.summary.join(" ");
    for (const article of document.querySelectorAll("article.case")) {
      const others = answer.marks.filter((mark) => mark.case === article.dataset.case && mark.reviewer !== reviewer);
      const lines = others.map((mark) => `${mark.reviewer}: ${mark.opinion}${mark.note ? ` – ${mark.note}` : ""}`);
      article.querySelector(".others").replaceChildren(...lines.map((textContent) => makeElement("li", { textContent })));
    }
  }

  function fill(answer) {
    for (const article of document.querySelectorAll("article.case")) {
      const mark = answer.marks.find((one) => one.case === article.dataset.case && one.reviewer === answer.reviewer);
      if (!mark) continue;
      article.querySelector(`[value=${mark.opinion}]`).checked = true;
      article.querySelector("textarea").value = mark.note;
    }
  }

  document.querySelectorAll("article.case").forEach((article, place) => addControls(article, place + 1));
  const link = makeElement("a", { href: "marks.csv", download: "marks.csv", textContent: "Marks as CSV" });
  summary.after(makeElement("p", {}, link));
  ask("marks").then(
    (answer) => {
      fill(answer);
      show(answer);
    },
    (error) => {
      summary.textContent = `The marks cannot be read: ${error.message}`;
    },
  );
}
