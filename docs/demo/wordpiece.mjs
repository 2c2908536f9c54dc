// The WordPiece tokenizer of BERT-like encoders, as tokenizer.json describes it: text in, token ids out.

const CONTROL = /(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}\uFFFD]/gu;
const CJK = /[\u4E00-\u9FFF\u3400-\u4DBF\u{20000}-\u{2A6DF}\u{2A700}-\u{2B81F}\u{2B920}-\u{2CEAF}\uF900-\uFAFF\u{2F800}-\u{2FA1F}]/gu;
const PUNCTUATION = /[\p{P}$+<=>^`|~]/gu; // ASCII symbols count as punctuation

function normalize(text, { clean_text, handle_chinese_chars, strip_accents, lowercase }) {
  if (clean_text) text = text.replace(CONTROL, "").replace(/\s/gu, " ");
  if (handle_chinese_chars) text = text.replace(CJK, " $& ");
  if (strip_accents ?? lowercase) text = text.normalize("NFD").replace(/\p{Mn}/gu, "");
  return lowercase ? Array.from(text, (letter) => letter.toLowerCase()).join("") : text; // a final Σ becomes σ, not ς
}

// Split a word into the longest pieces that the vocabulary has; null if it cannot be.
function piecesOf(word, vocabulary, { continuing_subword_prefix: prefix, max_input_chars_per_word: most }) {
  const letters = Array.from(word), ids = [];
  if (letters.length > most) return null;
  for (let start = 0, end; start < letters.length; start = end) {
    let id;
    for (end = letters.length; end > start; end--) {
      id = vocabulary.get((start ? prefix : "") + letters.slice(start, end).join(""));
      if (id !== undefined) break;
    }
    if (id === undefined) return null;
    ids.push(id);
  }
  return ids;
}

// The ids before and after those of a text, such as [CLS] and [SEP].
function frameOf(processor) {
  if (processor?.type === "BertProcessing") return [[processor.cls[1]], [processor.sep[1]]];
  if (processor?.type !== "TemplateProcessing") throw new Error(`there is no special tokens' template, but ${processor?.type}`);
  const at = processor.single.findIndex((item) => item.Sequence);
  const idsOf = (items) => items.flatMap((item) => processor.special_tokens[item.SpecialToken.id].ids);
  return [idsOf(processor.single.slice(0, at)), idsOf(processor.single.slice(at + 1))];
}

// Return a function from a text to its token ids, at most maxLength of them.
export function makeTokenizer(specification, maxLength) {
  const { model, normalizer, pre_tokenizer, post_processor, added_tokens, truncation } = specification;
  const kinds = [model.type, normalizer?.type, pre_tokenizer?.type];
  if (kinds.join() !== "WordPiece,BertNormalizer,BertPreTokenizer") {
    throw new Error(`this page reads the tokenizers of BERT-like encoders (WordPiece), not ${kinds.join(", ")}`);
  }
  const vocabulary = new Map(Object.entries(model.vocab)), [before, after] = frameOf(post_processor);
  const added = new Map(added_tokens.map((token) => [token.content, token.id]));
  const escaped = [...added.keys()].map((content) => content.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const splitAdded = (text) => (added.size ? text.split(new RegExp(`(${escaped.join("|")})`)) : [text]);
  const room = maxLength - before.length - after.length, unknown = vocabulary.get(model.unk_token);

  const idsOf = (part) => {
    if (added.has(part)) return [added.get(part)];
    const words = normalize(part, normalizer).replace(PUNCTUATION, " $& ").split(/\s+/u).filter(Boolean);
    return words.flatMap((word) => piecesOf(word, vocabulary, model) ?? [unknown]);
  };
  return (text) => {
    const ids = splitAdded(text).flatMap(idsOf);
    return [...before, ...(truncation?.direction === "Left" ? ids.slice(-room) : ids.slice(0, room)), ...after];
  };
}
