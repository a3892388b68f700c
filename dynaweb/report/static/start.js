
setUpTheme();
if (document.documentElement.dataset.stamp) setUpLive(document.documentElement.dataset.stamp);
setUpCharts(document);
if (typeof setUp === "function") setUp();
