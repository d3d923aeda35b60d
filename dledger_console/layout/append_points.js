((id, lines, most) => {
  const chart = getElement(id)?.chart;
  if (!chart) return;
  const series = chart.getOption().series.map((line) => {
    const data = line.data.concat(lines[line.name] || []).slice(-most);
    return { name: line.name, data, showSymbol: data.length < 2 };
  });
  chart.setOption({ series });
})(%d, %s, %d)
