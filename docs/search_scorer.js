// The order of search results: Sphinx reads this file (html_search_scorer in conf.py).
//
// A reader who searches for "timeout" wants to do something, so pages that show how come first, then
// the guide, then the reference. The C API and the history come last. A query that is a name of the
// API puts that name on top.

"use strict";

const PAGES = [
  [/^howto\//, 100],
  [/^tutorial$/, 80],
  [/^reference\/c$/, -200],
  [/^(changelog|developing|source_map|origins\w*)$/, -100],
  [/^(design\w*|reliability|performance)$/, 20],
  [/^reference\//, 0],
  [/^api$/, 10],
  [/./, 50], // the guide
];

function scoreOf([page, title, anchor, description, score, file, kind]) {
  const query = (new URLSearchParams(location.search).get("q") || "").trim();
  const isC = page === "reference/c";
  if (isC && /^pyfiber_/i.test(query)) return score + 300;
  const ends = query.includes(".") && title.endsWith(`.${query}`);
  const isName = ends || title === query || title === `pyfiber.${query}`;
  if (kind === "object" && isName && !isC) return score + 300;
  const bonus = PAGES.find(([pattern]) => pattern.test(page))[1];
  const words = query.toLowerCase().split(/\s+/);
  const isNamed = words.some((word) => page.endsWith(`/${word}`)); // howto/timeout
  // An entry of the index scores up to 100, a heading 16, a word in the text 5.
  return Math.min(score, 30) + bonus + (isNamed ? 40 : 0);
}

var Scorer = {
  score: scoreOf,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
