"""PTX text to a Module (PTX ISA chapters 4 and 5, 11).

Statements are recognised by one regular expression each, operands are parsed later and cached: a module of twenty
thousand lines takes well under a second. Debug sections are skipped; device functions may be present, not called.
"""

import re

from ..errors import PtxSyntaxError
from .operands import parse_number
from .syntax import Instruction, Kernel, Mark, Module, Parameter, Scope, Variable

_BLANK = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_MARK = re.compile(r'//\s*@machete\.mark\s+"([^"\n]*)"\s*([^\n]*)')
_STATEMENT = re.compile(
    r"\s*(?:(?P<brace>[{}])|(?P<empty>;)"
    r"|(?P<label>[A-Za-z_$%][\w$]*)\s*:(?!:)"
    r"|(?:@(?P<negated>!?)\s*(?P<guard>[%\w$]+)\s+)?(?P<opcode>[a-z][\w.:]*)(?P<operands>[^;]*);"
    r"|\.loc\s+(?P<file>\d+)\s+(?P<line>\d+)[^\n]*"
    r"|(?P<directive>\.[a-z]\w*)(?P<rest>[^;]*);)"
)
_TOP = re.compile(r"\s*(?P<word>\.[a-z]\w*)?")
_REGISTERS = re.compile(r"\s*(?:\.v([24])\s+)?\.(\w+)\s+(.*)", re.DOTALL)
_ARGUMENT = re.compile(r"\s*\.(\w+)\s+([\w$%]+)\s*")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)(?:\s+\.ptr[^\s,)]*(?:\s+\.\w+(?:\s+\d+)?)*)?\s+([\w$%]+)\s*(?:\[(\d+)\])?"
)
_VARIABLE = re.compile(
    r"(?:\.align\s+(?P<align>\d+)\s+)?(?:\.v(?P<vector>[24])\s+)?\.(?P<type>\w+)\s+(?P<name>[\w$%]+)"
    r"\s*(?P<array>(?:\[\s*\d*\s*\])*)\s*(?:=\s*(?P<value>.*))?",
    re.DOTALL,
)
_LIMIT = re.compile(
    r"\.(reqntid|maxntid|minnctapersm|maxnctapersm|maxnreg|reqnctapercluster|maxclusterrank)\s+([\d,\s]+)|\.(explicitcluster|blocksareclusters)"
)

SIZES = {
    "pred": 0, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b32": 4, "u32": 4,
    "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16,
}  # fmt: skip


class _Parser:
    def __init__(self, text: str) -> None:
        self.source = text
        self.marks: list[Mark] = []
        self.strings: dict[int, str] = {}
        # Same length and same lines as the text, without comments and strings.
        self.text = _BLANK.sub(self._blank, text)
        self.newlines = [m.start() for m in re.finditer("\n", text)]
        self.module = Module(text, (0, 0), "", {}, [], {}, self.newlines)

    def _blank(self, match: re.Match[str]) -> str:
        found = match[0]
        if found[0] == '"':
            self.strings[match.start()] = found[1:-1]
            return '"' + "s" * (len(found) - 2) + '"'
        mark = _MARK.fullmatch(found)
        if mark:
            replacement = f"mark {len(self.marks)};"
            if len(replacement) <= len(found):
                self.marks.append(Mark(mark[1], tuple(part.strip(" ,") for part in mark[2].split())))
                return replacement.ljust(len(found))
        return re.sub(r"[^\n]", " ", found)

    def fail(self, message: str, offset: int) -> PtxSyntaxError:
        line = self.module.line(offset)
        start = self.newlines[line - 2] + 1 if line > 1 else 0
        return PtxSyntaxError(
            message, line, self.source[start : self.newlines[line - 1] if line <= len(self.newlines) else None]
        )

    # ---- module level

    def parse(self) -> Module:
        text, at = self.text, 0
        while True:
            match = _TOP.match(text, at)
            assert match is not None
            at = match.end()
            word = match["word"]
            if word is None:
                if at >= len(text):
                    return self.module
                raise self.fail("a directive is expected here", at)
            at = self._directive(word, match.start("word"), at)

    def _directive(self, word: str, start: int, at: int) -> int:
        text = self.text
        end_of_line = text.find("\n", at)
        end_of_line = len(text) if end_of_line < 0 else end_of_line
        if word == ".version":
            major, _, minor = text[at:end_of_line].strip().partition(".")
            self.module.version = (int(major), int(minor))
            return end_of_line
        if word == ".target":
            self.module.target = text[at:end_of_line].split(",")[0].strip()
            return end_of_line
        if word == ".address_size":
            if text[at:end_of_line].strip() != "64":
                raise self.fail("only 64-bit addresses exist here", start)
            return end_of_line
        if word == ".file":
            index = int(text[at:end_of_line].split()[0])
            quote = text.index('"', at)
            self.module.files[index] = self.strings[quote]
            return end_of_line
        if word == ".loc":
            return end_of_line
        if word in (".pragma", ".alias"):
            return text.index(";", at) + 1
        if word == ".section":
            return self._closing_brace(text.index("{", at)) + 1
        if word in (".visible", ".weak", ".extern", ".common"):
            match = _TOP.match(text, at)
            if match is None or match["word"] is None:
                raise self.fail("a directive is expected here", at)
            inner = match["word"]
            if inner == ".entry":
                return self._entry(match.end())
            if inner == ".func":
                return self._skip_function(match.end())
            return self._variable(inner, match.start("word"), match.end(), word == ".extern", self.module.variables)
        if word == ".entry":
            return self._entry(at)
        if word == ".func":
            return self._skip_function(at)
        if word in (".global", ".const", ".shared"):
            return self._variable(word, start, at, False, self.module.variables)
        raise self.fail(f"directive {word} is not known", start)

    def _closing_brace(self, at: int) -> int:
        depth = 0
        for match in re.compile("[{}]").finditer(self.text, at):
            depth += 1 if match[0] == "{" else -1
            if depth == 0:
                return match.start()
        raise self.fail("this brace is never closed", at)

    def _skip_function(self, at: int) -> int:
        match = re.compile(r"[{;]").search(self.text, at)
        if match is None:
            raise self.fail("this function never ends", at)
        return match.end() if match[0] == ";" else self._closing_brace(match.start()) + 1

    def _variable(self, word: str, start: int, at: int, external: bool, into: list[Variable]) -> int:
        end = self.text.index(";", at)
        match = _VARIABLE.fullmatch(self.text[at:end].strip())
        if match is None or match["type"] not in SIZES:
            raise self.fail("this declaration is not understood", start)
        element = SIZES[match["type"]]
        count, dynamic = int(match["vector"] or 1), False
        for extent in re.findall(r"\[\s*(\d*)\s*\]", match["array"]):
            dynamic |= extent == ""
            count *= int(extent or 0)
        data = self._initialiser(match["value"], element, count * element, start) if match["value"] else None
        into.append(
            Variable(
                match["name"], word[1:], int(match["align"] or element), count * element, data, external or dynamic
            )
        )
        return end + 1

    def _initialiser(self, text: str, element: int, nbytes: int, start: int) -> bytes:
        out = bytearray()
        for part in re.sub(r"[{}\s]", " ", text).replace(",", " ").split():
            try:
                out += (parse_number(part).value & (1 << 8 * element) - 1).to_bytes(element, "little")
            except ValueError:
                raise self.fail(f"initialiser {part} is not understood", start) from None
        return bytes(out).ljust(nbytes, b"\0")

    # ---- kernels

    def _entry(self, at: int) -> int:
        text = self.text
        match = re.compile(r"\s*([\w$]+)\s*(\(([^)]*)\))?").match(text, at)
        if match is None:
            raise self.fail("an entry needs a name", at)
        kernel = Kernel(match[1], self._parameters(match[3] or "", match.start()))
        open_brace = text.index("{", match.end())
        head = text[match.end() : open_brace]
        for limit in _LIMIT.finditer(head):
            kernel.limits[limit[1] or limit[3]] = tuple(int(v) for v in (limit[2] or "").replace(",", " ").split())
        left = re.sub(r'\.pragma\s+"[^"]*"\s*;?', "", _LIMIT.sub("", head)).strip()
        if left:
            word = left.split()[0]
            raise self.fail(f"{word} is not known here", match.end() + head.index(word))
        kernel.marks = self.marks
        self.module.kernels[kernel.name] = kernel
        return self._body(kernel, open_brace + 1)

    def _parameters(self, text: str, start: int) -> list[Parameter]:
        out: list[Parameter] = []
        offset = 0
        for part in filter(None, (p.strip() for p in text.split(","))):
            match = _PARAMETER.fullmatch(part)
            if match is None or match[2] not in SIZES:
                raise self.fail(f"parameter {part!r} is not understood", self.text.index(part, start))
            nbytes = SIZES[match[2]] * (int(match[4]) if match[4] else 1)
            align = int(match[1] or SIZES[match[2]])
            offset = -(-offset // align) * align
            out.append(Parameter(match[3], offset, nbytes))
            offset += nbytes
        return out

    def _body(self, kernel: Kernel, at: int) -> int:
        text, statement = self.text, _STATEMENT
        scope = Scope(None)
        instructions = kernel.instructions
        while True:
            match = statement.match(text, at)
            if match is None:
                raise self.fail("this is not a statement", at + len(text[at:]) - len(text[at:].lstrip()))
            at = match.end()
            kind = match.lastgroup
            if kind == "operands":
                instructions.append(
                    Instruction(
                        match["opcode"],
                        match["operands"],
                        match["guard"],
                        match["negated"] == "!",
                        scope,
                        match.start("opcode"),
                    )
                )
            elif kind == "label":
                if match["label"] in scope.labels:
                    raise self.fail(f"label {match['label']} is defined twice", match.start("label"))
                scope.labels[match["label"]] = len(instructions)
            elif kind == "line":
                kernel.locations.append((match.start("file"), int(match["file"]), int(match["line"])))
            elif kind == "brace":
                if match["brace"] == "{":
                    scope = Scope(scope)
                elif scope.parent is None:
                    return at
                else:
                    scope = scope.parent
            elif kind != "empty":
                self._local_directive(kernel, scope, match)

    def _local_directive(self, kernel: Kernel, scope: Scope, match: re.Match[str]) -> None:
        word = match["directive"]
        if word == ".reg":
            declared = _REGISTERS.fullmatch(match["rest"])
            if declared is None or declared[2] not in SIZES:
                raise self.fail("this register declaration is not understood", match.start("directive"))
            count, kind, names = declared.groups()
            for name in map(str.strip, names.split(",")):
                if name.endswith(">"):
                    if count:
                        raise self.fail("a family of vector registers is not understood", match.start("directive"))
                    stem, _, members = name[:-1].partition("<")
                    scope.families[stem] = (kind, int(members))
                elif count:
                    scope.vectors[name] = tuple(f"{name}.{element}" for element in "xyzw"[: int(count)])
                    scope.registers |= dict.fromkeys(scope.vectors[name], kind)
                    kernel.vectors = True
                else:
                    scope.registers[name] = kind
        elif word == ".param":  # of a call: a register by another name
            declared = _ARGUMENT.fullmatch(match["rest"])
            if declared is None or declared[1] not in SIZES:
                raise self.fail("only scalar arguments of calls are understood", match.start("directive"))
            scope.registers[declared[2]] = declared[1]
            scope.arguments.add(declared[2])
        elif word in (".shared", ".local", ".global", ".const"):
            self._variable(word, match.start("directive"), match.start("rest"), False, kernel.variables)
        elif word != ".pragma":
            raise self.fail(f"directive {word} is not known here", match.start("directive"))


def parse(text: str) -> Module:
    """Parse a PTX module. Raises PtxSyntaxError with the line."""
    return _Parser(text).parse()


def offsets(sizes: list[tuple[int, int]], start: int = 0) -> list[int]:
    """Offsets of (bytes, alignment) objects laid out in order, and the end."""
    result: list[int] = []
    at = start
    for nbytes, align in sizes:
        at = -(-at // align) * align
        result.append(at)
        at += nbytes
    return [*result, at]
