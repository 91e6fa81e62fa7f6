/* Order of what the site's search finds: pages for users, then evidence, then decisions. Sphinx puts it into searchtools.js. */
var Scorer = {
  score: ([page, title, anchor, description, score]) =>
    score + (page.startsWith("docs/decisions/") ? -100 : page === "docs/benchmarks" || page === "CHANGELOG" ? -50 : 0),
  objNameMatch: 11, objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5}, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
