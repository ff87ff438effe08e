#pragma once
#include <string>
#include <string_view>
#include <vector>

// The untyped configuration tree between YAML text and typed structs.
namespace millrace::config {

struct Node {
  enum class Kind { null, scalar, list, map };

  Kind kind = Kind::null;
  std::string name;            // the key, for children of a map
  std::string text;            // of a scalar
  bool quoted = false;         // text in quotes is never null
  bool literal = false;        // ${...} was replaced already, or stands for itself
  bool broken = false;         // its ${...} failed and was reported
  std::string origin;          // "default", "FILE:LINE", "override", "env VAR (FILE:LINE)"
  std::vector<Node> children;  // of a list or a map, in the order of the text
  std::vector<Node> over;      // of a ${reference}: maps that are merged, in order, onto the one that it means

  static Node scalar(std::string text);  // plain: a number, a boolean, a word
  static Node string(std::string text);  // free text
  static Node list();
  static Node map();

  void set_origin(const std::string& of_all);  // also of its children
  bool is_null() const;                        // null, or the plain words that mean it
  bool is_missing() const;                     // ???
  Node* find(std::string_view key);
  const Node* find(std::string_view key) const;
  std::string show() const;  // one line, for messages
};

}  // namespace millrace::config
