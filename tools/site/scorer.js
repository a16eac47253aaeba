// The order of search results: pages that explain before pages of headers, and an option by its name first of all.
// A result is [page, title, anchor, description, score, file, kind].
var Scorer = {
  score: (result) => {
    const [page, title, anchor, , score, , kind] = result;
    const by_name = kind === "index";
    // Sphinx shows the title of the page alone for a name that it found.
    if (by_name && anchor) result[1] = `${title} > ${anchor.slice(1)}`;
    return (by_name ? score / 5 : score) + (page.startsWith("api/") ? 0 : 30);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
