"""The words of notes and tags that the report does not have, in its languages. Imports nothing of ours."""

from __future__ import annotations

from typing import Any

WORDS: dict[str, dict[str, str]] = {
    "en": {
        "phase": "**Running:** {phase}, {done} of {total} runs of this phase done.",
        "best": "Best so far: {best}.",
        "rows": "{count} runs stored, {failed} of them failed.",
        "large": "While the study runs this page shows the {shown} of them that matter most (plain decoding, confirm "
        "runs and the fastest); conclusions over all of them are drawn at the end.",
        "beside": "Runs beside the search",
        "beside.why": "Plain decoding, its canaries, the default setting and the confirm blocks are no trials of the "
        "sampler, so they are listed here.",
        "beside.more": "{count} earlier ones are left out here; the report has them all.",
        "column.run": "run",
        "column.what": "what",
        "column.candidate": "trial",
        "column.figure": "result",
        "full": "The whole report is among this study's files: `findings.html`.",
        "shortened": "Shortened here; the report has the rest.",
        "one_run": "one run: no interval",
        "interval": "95 % interval of {n} runs",
        "runs": "single runs: {figures}",
        "no_value": "no value",
        "al": "{al} tokens per verify step, {step} ms per step",
        "plain": "plain decoding: {plain} ms per token",
        "failed": "Failed: {kind}",
        "log_tail": "Last lines of the log",
        "setting": "Setting",
        "command": "Command line",
        "evidence": "Evidence: `{folder}`",
        "imported": "An imported row: {label}. Its figures are its author's; this program measured nothing.",
        "claimed": "Its author decided: {status}.",
        "duplicate": "Not run: it comes to the same server as an earlier candidate, whose result it repeats.",
        "impossible": "Not run: {problem}",
        "stage_title": "#{number}: one verify step",
        "tie": "break-even",
    },
    "zh": {
        "phase": "**进行中：** {phase}，本阶段已完成 {done}/{total} 次运行。",
        "best": "目前最佳：{best}。",
        "rows": "已存 {count} 次运行，其中 {failed} 次失败。",
        "large": "运行很多，研究进行时本页只显示最要紧的 {shown} 次（普通解码、确认运行与最快者）；"
        "对全部运行的结论在结束时得出。",
        "beside": "搜索之外的运行",
        "beside.why": "普通解码、其复测、默认设置与确认区组不是采样器的试验，因此列在这里。",
        "beside.more": "更早的 {count} 次在此略去；报告中全部列出。",
        "column.run": "运行",
        "column.what": "内容",
        "column.candidate": "试验",
        "column.figure": "结果",
        "full": "完整报告在本研究的文件中：`findings.html`。",
        "shortened": "此处已缩短；其余见报告。",
        "one_run": "单次运行：无区间",
        "interval": "{n} 次运行的 95 % 区间",
        "runs": "各次运行：{figures}",
        "no_value": "无数值",
        "al": "每个验证步 {al} 个词元，每步 {step} ms",
        "plain": "普通解码：每词元 {plain} ms",
        "failed": "失败：{kind}",
        "log_tail": "日志末尾",
        "setting": "设置",
        "command": "命令行",
        "evidence": "证据：`{folder}`",
        "imported": "导入的一行：{label}。数字来自其作者；本程序未作任何测量。",
        "claimed": "其作者的决定：{status}。",
        "duplicate": "未运行：它与先前某个候选得到同样的服务器，沿用其结果。",
        "impossible": "未运行：{problem}",
        "stage_title": "#{number}：一个验证步",
        "tie": "盈亏平衡",
    },
}


def words(lang: str, key: str, **fields: Any) -> str:
    """One text. Raises KeyError for an unknown key: that is a defect of ours."""
    return WORDS[lang][key].format(**fields)
