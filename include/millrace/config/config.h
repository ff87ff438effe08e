#pragma once
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/config/format.h"
#include "millrace/config/node.h"
#include "millrace/core/units.h"

// Configuration: plain structs, each with one `describe`, over YAML files and dotted overrides with OmegaConf's
// semantics. From `describe` come parsing, checking, --help, docs/config.md, --print-config, the resolved dump and the
// diff on resume.
//
//   struct OptimConfig {
//     double lr = 1e-4;
//     std::optional<double> clip = 1.0;                    // null
//     Auto<int> threads;                                   // auto
//     Schedule schedule = Schedule::constant;              // enum
//     void describe(config::Section& s) {
//       s.key("lr", lr, "learning rate after the warm-up").at_least(0);
//       s.key("clip", clip, "largest global gradient norm; null = off").above(0);
//       s.key("threads", threads, "threads of this rank").at_least(1);
//       s.key("schedule", schedule, {{"constant", Schedule::constant}, {"cosine", Schedule::cosine}}, "after the
//       warm-up");
//     }
//   };
//   struct Root {
//     OptimConfig optim;
//     std::optional<DataSource> validation;                // null or a map
//     void describe(config::Section& s) {
//       s.section("optim", optim, "AdamW");
//       s.section("validation", validation, "data that is never trained on");
//     }
//   };
namespace millrace::config {

class Section;

// A member behind its format, without its type.
class Field {
 public:
  virtual ~Field() = default;
  virtual std::string type() const = 0;
  virtual Syntax syntax() const = 0;
  // Keeps the old value and throws BadValue when the node or `check`, which sees the new value, does not fit.
  virtual void read(const Node& node, const std::function<void()>& check) = 0;
  virtual Node write() const = 0;
  virtual std::vector<double> numbers() const = 0;  // what the bounds of a key apply to
};

template <class T, class F>
class BoundField final : public Field {
 public:
  BoundField(T& value, F format) : value_(value), format_(std::move(format)) {}
  std::string type() const override { return format_.type(); }
  Syntax syntax() const override { return F::syntax; }
  void read(const Node& node, const std::function<void()>& check) override {
    T value{};
    format_.read(node, value);
    std::swap(value, value_);
    try {
      check();
    } catch (const BadValue&) {
      std::swap(value, value_);
      throw;
    }
  }
  Node write() const override { return format_.write(value_); }
  std::vector<double> numbers() const override { return format_.numbers(value_); }

 private:
  T& value_;
  F format_;
};

// One key: its field, its line of help and the bounds of its value.
class Key {
 public:
  Key(std::string name, std::string help, std::unique_ptr<Field> field)
      : name_(std::move(name)), help_(std::move(help)), field_(std::move(field)) {}

  Key& at_least(double bound);
  Key& above(double bound);
  Key& at_most(double bound);
  Key& below(double bound);
  // For text keys whose words are no enum.
  Key& one_of(std::vector<std::string> words);
  // `???` until a list or text is not empty.
  Key& required();
  // `???` in a file is of other commands, and nothing here.
  Key& skip_missing();

  const std::string& name() const { return name_; }
  const std::string& help() const { return help_; }
  const Field& field() const { return *field_; }
  bool skips_missing() const { return skips_missing_; }
  std::string type() const;  // with the bounds: "number >= 0"
  void read(const Node& node);
  Node write() const;

 private:
  struct Bound {
    std::string text;  // ">= 0"
    bool (*holds)(double value, double bound);
    double bound;
  };
  Key& add(std::string sign, double bound, bool (*holds)(double, double));
  void check(const Node& node) const;

  std::string name_, help_;
  std::unique_ptr<Field> field_;
  std::vector<Bound> bounds_;
  std::vector<std::string> words_;
  bool required_ = false, skips_missing_ = false;
};

// What `describe` fills: keys and sections in the order of the documentation. Refers to the struct's members, which
// must stay in place.
class Section {
 public:
  explicit Section(std::string name = {}, std::string help = {}) : name_(std::move(name)), help_(std::move(help)) {}

  template <class Root>
  static Section of(Root& root) {
    Section section;
    root.describe(section);
    return section;
  }

  template <class T>
  Key& key(std::string name, T& value, std::string help) {
    return add(std::move(name), std::move(help), std::make_unique<BoundField<T, Format<T>>>(value, Format<T>()));
  }

  // Enums by name; also Auto<E>, std::optional<E> and std::vector<E>.
  template <class T>
  Key& key(std::string name, T& value,
           std::initializer_list<std::pair<std::string_view, typename EnumIn<T>::Enum>> names, std::string help) {
    auto format = EnumIn<T>::format({{names.begin(), names.end()}});
    return add(std::move(name), std::move(help), std::make_unique<BoundField<T, decltype(format)>>(value, format));
  }

  template <class S>
  Section& section(std::string name, S& value, std::string help) {
    Section& child = add_section(std::move(name), std::move(help));
    value.describe(child);
    return child;
  }

  // null or a map.
  template <class S>
  Section& section(std::string name, std::optional<S>& value, std::string help) {
    Section& child = add_section(std::move(name), std::move(help));
    child.engaged_ = [&value] { return value.has_value(); };
    child.disengage_ = [&value] { value.reset(); };
    child.engage_ = [&value](Section& section) { value.emplace().describe(section); };
    if (value) {
      value->describe(child);
    } else {
      auto defaults = std::make_shared<S>();  // for help and for defaults, until there is a value
      child.defaults_ = defaults;
      defaults->describe(child);
    }
    return child;
  }

  // Keys that other commands read from the same file: accepted here and left alone. Described ones are taken back.
  void ignore(const std::vector<std::string>& names);
  // Ignores all that is described but these.
  void keep(const std::vector<std::string>& names);
  // Ignores what S describes and this section does not.
  template <class S>
  void ignore_rest_of() {
    S other;
    ignore_rest_of(of(other));
  }
  // A key of earlier versions: refused with the name of the one that took its place and a word about that one.
  void renamed(std::string before, std::string now, std::string meaning);

  struct Renamed {
    std::string before, now, meaning;
  };
  struct Entry {
    std::unique_ptr<Key> key;          // either a key
    std::unique_ptr<Section> section;  // or a section
    const std::string& name() const { return key ? key->name() : section->name_; }
  };

  const std::string& name() const { return name_; }
  const std::string& help() const { return help_; }
  const std::vector<Entry>& entries() const { return entries_; }
  const Entry* find(std::string_view name) const;
  Section& at(std::string_view name);  // a section in it
  bool ignores(std::string_view name) const;
  const std::vector<Renamed>& renamed() const { return renamed_; }
  bool is_optional() const { return static_cast<bool>(engage_); }
  bool is_engaged() const { return !engaged_ || engaged_(); }
  void engage();     // an optional section gets a fresh value with its defaults
  void disengage();  // and becomes null

 private:
  Key& add(std::string name, std::string help, std::unique_ptr<Field> field);
  Section& add_section(std::string name, std::string help);
  void ignore_rest_of(const Section& other);

  std::string name_, help_;
  std::vector<Entry> entries_;
  std::vector<std::string> ignored_;
  std::vector<Renamed> renamed_;
  std::function<bool()> engaged_;
  std::function<void(Section&)> engage_;
  std::function<void()> disengage_;
  std::shared_ptr<void> defaults_;
};

// What the user gave, in order: later wins.
struct Inputs {
  std::vector<std::filesystem::path> files;
  std::vector<std::string> overrides;  // "optim.lr=1e-4"
};

// What came of loading: where each value is from, and everything that is wrong with it.
class Report {
 public:
  // Adds a finding about `key` (dotted), for checks across keys; the line names where the key's value is from. Left out
  // where the value of `key`, or of one of those that the finding also rests on, was refused: that is reported already.
  void problem(std::string_view key, std::string_view text, std::initializer_list<std::string_view> rests_on = {});
  void problem_at(std::string origin, std::string text);
  // The same for a value that could not be taken; its member holds the default.
  void refuse(const std::string& key, const std::string& origin, const std::string& text);
  void refuse(const std::string& key) { refused_.insert(key); }  // reported elsewhere
  const std::vector<std::string>& problems() const { return problems_; }
  // Error(usage) with one line per problem; nothing when all is well.
  void throw_if_problems() const;
  // "default", "FILE:LINE", "override" or "env VAR (FILE:LINE)"; empty for an unknown key.
  std::string origin(std::string_view key) const;
  bool is_set(std::string_view key) const;    // in a file or on the command line
  bool is_typed(std::string_view key) const;  // on the command line

  Node tree;                        // all keys with their resolved values and origins
  std::vector<std::string> unread;  // overrides of keys that other commands have

 private:
  bool is_refused(std::string_view key) const;

  std::vector<std::string> problems_;
  std::set<std::string, std::less<>> refused_;  // keys and sections
};

// A struct with `describe`.
template <class T>
concept Describable = requires(T value, Section section) {
  value.describe(section);
};

Report load(Section& schema, const Inputs& inputs);
Report load_text(Section& schema, const std::string& yaml, const std::string& source);
std::string dump_yaml(const Section& schema);
std::string dump_yaml_for_others(const Section& schema);
std::string print_yaml(const Section& schema, const Report& report);
std::string print_json(const Section& schema);
std::string help(const Section& schema, std::string_view section);
std::string markdown(const Section& schema);

// Reads files, then overrides, into `root`. Problems are collected in the report, so that the caller can add its own
// before `throw_if_problems`; until then `root` holds the defaults of refused values. Throws Error(io) when a file
// cannot be read.
template <Describable Root>
Report load(Root& root, const Inputs& inputs) {
  Section schema = Section::of(root);
  return load(schema, inputs);
}

// The same of one text; `source` stands for the file's name in messages.
template <Describable Root>
Report load_text(Root& root, const std::string& yaml, const std::string& source) {
  Section schema = Section::of(root);
  return load_text(schema, yaml, source);
}

// All keys with their values: loading it again gives the same struct.
template <Describable Root>
std::string dump_yaml(Root root) {
  return dump_yaml(Section::of(root));
}

// The same, each value without_secrets (core/secrets.h).
template <Describable Root>
std::string dump_yaml_for_others(Root root) {
  return dump_yaml_for_others(Section::of(root));
}

// The same with `# origin` behind each value (--print-config).
template <Describable Root>
std::string print_yaml(Root root, const Report& report) {
  return print_yaml(Section::of(root), report);
}

template <Describable Root>
std::string print_json(Root root) {
  return print_json(Section::of(root));
}

// Keys, types, defaults and one line each, of all sections or of one ("data.train"); Error(usage) for an unknown one.
template <Describable Root>
std::string help(Root root, std::string_view section = {}) {
  return help(Section::of(root), section);
}

// One table per section, for docs/config.md.
template <Describable Root>
std::string markdown(Root root) {
  return markdown(Section::of(root));
}

struct Change {
  std::string key, before, after;
};
// Whether a dotted key is this key or section, or lies in it.
bool is_in(std::string_view key, std::string_view section);
std::vector<Change> changes(const Section& before, const Node& earlier, const Section& after);

// Keys whose values differ between an earlier `dump_yaml` and `root`, in the order of the documentation. Keys the
// earlier text lacks count with their defaults, keys of it that exist no more are left out; where one was renamed, the
// new key counts as changed.
template <Describable Root>
std::vector<Change> diff(const std::string& yaml, Root root) {
  Root before{};
  Section old_schema = Section::of(before);
  const Report report = load_text(old_schema, yaml, "earlier configuration");
  return changes(old_schema, report.tree, Section::of(root));
}

}  // namespace millrace::config
