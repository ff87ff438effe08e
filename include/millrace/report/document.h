#pragma once
#include <string>
#include <variant>
#include <vector>

#include "millrace/image/image.h"
#include "millrace/report/run_record.h"

namespace millrace {

// A report before it is HTML or Markdown. Texts are anybody's: writers escape them.
struct Paragraph {
  std::string text;
};

struct ReportTable {
  std::vector<std::string> header;             // may be empty
  std::vector<std::vector<std::string>> rows;  // a first column that names, then what it says
  bool names_are_code = false;                 // the first column's are words of files and settings
};

struct Curve {
  std::string name;
  Series points;
  bool is_faint = false;  // what another curve smooths
  // What each point is called. The points of such a curve are dots in the order given, their steps need not ascend.
  std::vector<std::string> labels = {};
};

struct Plot {
  std::string title, unit;
  std::vector<Curve> curves;
  bool from_zero = false;
  double x_unit = 1;  // what a step is worth on the axis, where it is none of training
};

struct Bar {
  std::string name;
  double value;
  bool stands_out = false;
};

struct Bars {
  std::string title, unit;
  std::vector<Bar> bars;
};

struct Picture {
  std::string caption;
  Image image;
};

using Block = std::variant<Paragraph, ReportTable, Plot, Bars, Picture>;

struct Section {
  std::string title;
  std::vector<Block> blocks;
};

struct Document {
  std::string title, subtitle;
  std::vector<Section> sections;
};

// One page that needs nothing else: styles and pictures inside, no scripts; light and dark, wide and narrow.
std::string render_html(const Document& document);
// The same without plots and pictures, of which it has numbers and captions.
std::string render_markdown(const Document& document);

}  // namespace millrace
