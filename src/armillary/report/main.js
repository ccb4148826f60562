// Set up the page: tables, figures, the map, dossiers.
import { page } from "./format.js";
import { onHead, watch } from "./plots.js";
import { goTo } from "./popover.js";
import { Grid } from "./table.js";
import { openHead, openRow, prepare } from "./dossier.js";
import { headMap } from "./map.js";
import { throughTime } from "./timeline.js";

const grids = [...document.querySelectorAll("[data-table]")].map(
  (place) =>
    new Grid(place, ([layer, head], [grid]) => {
      const order = grid.name === "heads" ? grid.rows : undefined;
      openHead(layer, head, order);
    }),
);
onHead((row) => openRow(row, grids.find((grid) => grid.name === "heads")?.rows));
prepare();
headMap();
throughTime();
watch();
window.addEventListener("beforeprint", () => {
  document.getElementById("dossier").close();
  for (const grid of grids) grid.showAll();
  for (const closed of document.querySelectorAll("main details")) closed.open = true;
});

function follow() {
  const head = /^#head-(\d+)\.(\d+)$/.exec(location.hash);
  if (head && page.tables.heads) openHead(Number(head[1]), Number(head[2]));
  else if (location.hash.startsWith("#def-")) goTo(location.hash.slice(1));
}
window.addEventListener("hashchange", follow);
follow();
document.documentElement.dataset.ready = "yes";
performance.mark("ready");
