(() => {
  const pages = %s; let armed = 0;
  document.addEventListener('keydown', (event) => {
    const field = event.target.closest('input, textarea, select, [contenteditable]');
    if (field || event.ctrlKey || event.metaKey || event.altKey) return;
    if (armed > Date.now() && pages[event.key]) { armed = 0; location.assign(pages[event.key]); event.preventDefault(); }
    else if (event.key === 'g') armed = Date.now() + 1500;
    else if (event.key === '/') {
      const search = document.querySelector('.search input');
      if (search) { search.focus(); event.preventDefault(); }
    }
  });
  const visible = () => emitEvent('dledger_visible', !document.hidden);
  document.addEventListener('visibilitychange', visible);
  if (document.hidden) visible();
  document.querySelector('.nav-here')?.scrollIntoView({ block: 'nearest', inline: 'center' });
  document.body.dataset.keys = 'on';
})()
