#pragma once
#include <string>

#include "millrace/report/document.h"

namespace millrace {

enum class PlotSize { wide, half };

// An SVG element; colours are classes of the page's style. A curve of many points keeps the
// lowest and highest of each of its columns, so spikes stay. Gaps where numbers are missing.
std::string render_plot(const Plot& plot, PlotSize size = PlotSize::wide);

// For text in HTML, SVG and attributes: & < > " ' become references, control characters and broken UTF-8 U+FFFD.
std::string escape(std::string_view text);

// "0.125", "1.2k", "3.4e-05": short, for people.
std::string short_number(double value);

}  // namespace millrace
