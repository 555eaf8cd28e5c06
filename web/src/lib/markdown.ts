// Markdown of models as HTML that cannot do anything. Two walls: `<` is text and never a tag, because models write
// Markdown and not HTML (so nothing is ever parsed that could report to the policy); then DOMPurify lets plain text elements through, and nothing that loads or sends.
import DOMPurify from 'dompurify';
import { Marked } from 'marked';

const marked = new Marked({ gfm: true, breaks: true });
marked.use({ tokenizer: { html: () => undefined, tag: () => undefined } });
const FORBIDDEN = ['img', 'style', 'form', 'svg', 'math', 'input', 'button', 'iframe', 'video', 'audio', 'picture', 'source'];

DOMPurify.addHook('afterSanitizeAttributes', (node) => {
  if (node.nodeName === 'A') {
    node.setAttribute('target', '_blank');
    node.setAttribute('rel', 'noreferrer noopener');
  }
});

/** A page shows a long answer as a reply, as the answer and in the conversation: it is parsed once. */
const known = new Map<string, string>();

export function html(text: string): string {
  const found = known.get(text);
  if (found !== undefined) return found;
  const made = cleaned(text);
  if (known.size >= 20) known.delete(known.keys().next().value!);
  known.set(text, made);
  return made;
}

function cleaned(text: string): string {
  const parsed = marked.parse(text, { async: false });
  return DOMPurify.sanitize(parsed, {
    USE_PROFILES: { html: true },
    FORBID_TAGS: FORBIDDEN,
    FORBID_ATTR: ['style', 'srcset', 'src', 'background', 'action', 'formaction', 'poster', 'ping'],
    ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#)/i,
    ALLOW_DATA_ATTR: false,
  });
}
