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
    let waiting = false;
    const draw = () => {
      waiting = false;
      // A copy, since plotly writes into what it is given.
      const { data, layout } = structuredClone(figure.get("value"));
      return Plotly.react(el, data, layout, model.get("config"));
    };
    // Behind what has already come in: changes that come faster than they can be drawn are drawn as one.
    const change = () => {
      if (!waiting) setTimeout(draw);
      waiting = true;
    };
    figure.on("change:value", change);
    await draw();
    return () => {
      figure.off("change:value", change);
      Plotly.purge(el);
    };
  },
};
