// Sphinx ranks a page by whether a word is anywhere in it or in its headings. A heading that has more of the words
// that were asked for makes its page come first.
const stemsOf = (text) => {
  const stemmer = new Stemmer();
  const words = splitQuery(text.toLowerCase());
  return words.filter((word) => word.length > 2 && !stopwords.has(word)).map((word) => stemmer.stemWord(word));
};

const shareIn = (asked, text) => {
  const stems = new Set(stemsOf(text));
  return asked.filter((stem) => stems.has(stem)).length / Math.max(asked.length, 1);
};

// By the number of a page, the share of the words that its best heading has.
let bestShares = null;

const findBestShares = (asked) => {
  bestShares = Search._index.docnames.map(() => 0);
  for (const [heading, places] of Object.entries(Search._index.alltitles)) {
    const share = shareIn(asked, heading);
    for (const [page] of places) bestShares[page] = Math.max(bestShares[page], share);
  }
};

var Scorer = {
  score: ([name, _title, _anchor, _description, score]) => {
    const asked = stemsOf(new URLSearchParams(window.location.search).get("q") ?? "");
    if (bestShares === null) findBestShares(asked);
    const page = Search._index.docnames.indexOf(name);
    const titled = shareIn(asked, `${name} ${Search._index.titles[page]}`);
    return score + 40 * bestShares[page] ** 2 + 20 * titled;
  },
  objNameMatch: 100,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
