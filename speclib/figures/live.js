// A live figure in the page. All figures share one copy of plotly.js, and only the newest state is drawn.

async function load(source) {
  // JupyterLab's own extension leaves it there too, once it has drawn a figure.
  if (window.Plotly) return window.Plotly;
  // Else it would set up MathJax in its own way for the whole page.
  window.PlotlyConfig = { MathJaxConfig: "local" };
  const url = URL.createObjectURL(new Blob([source.get("value")], { type: "text/javascript" }));
  await import(url);
  URL.revokeObjectURL(url);
  return window.Plotly;
}

export default {
  async render({ model, el, host }) {
    const figure = await host.getModel(model.get("figure"));
    const source = await host.getModel(model.get("plotly"));
    window.speclibPlotly ??= load(source).finally(() => { window.speclibPlotly = null; });
    const Plotly = await window.speclibPlotly;
    let waiting = false, drawn = 0;
    const draw = () => {
      waiting = false;
      // A copy, since plotly writes into what it is given.
      const { data, layout } = structuredClone(figure.get("value"));
      const done = Plotly.react(el, data, layout, model.get("config"));
      drawn = performance.now();
      return done;
    };
    // At once, before the page paints what else has moved. But changes that come faster than they can be drawn are
    // drawn as one, behind all that has already come in.
    const change = () => {
      if (waiting) return;
      if (performance.now() - drawn > 30) return draw();
      waiting = true;
      setTimeout(draw);
    };
    figure.on("change:value", change);
    await draw();
    return () => {
      figure.off("change:value", change);
      Plotly.purge(el);
    };
  },
};
