// Package chart draws figures over sizes as SVG: panels side by side, with a
// common legend. What it draws is one file without a script, whose colours
// follow the light or dark scheme of the viewer.
package chart
