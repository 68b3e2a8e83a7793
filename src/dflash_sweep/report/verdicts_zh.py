"""Chinese sentences of conclusions by "<id>.<status>". Imports nothing.

Fields: subject; figure (value, interval and unit as they are); percent (value and interval times 100); change (a ratio
as a change in per cent); low, high (ends of the interval); statement (the English sentence, where it holds more than
figures).
"""

SENTENCES: dict[str, str] = {
    "structural_bound.holds": "这些轴取任何值都快不过普通解码：{subject} 把速度限制在 {figure}。"
    "应停止扫描，改换实现。（{statement}）",
    "structural_bound.does_not_hold": "没有结构上限挡住推测解码：{figure}。",
    "break_even.holds": "推测解码快于普通解码，最好的重复配置与普通解码之比：{figure}。",
    "break_even.does_not_hold": "推测解码慢于普通解码，最好的重复配置与普通解码之比：{figure}。",
    "oracle_gate.holds": "最好的逐步开关能达到：{figure}。",
    "oracle_gate.does_not_hold": "即使最好的逐步开关也只能达到：{figure}。",
    "stage_attribution.holds": "{subject} 占每步时间的 {percent}。",
    "dead_axis.does_not_hold": "{subject} 影响目标值，两个取值之间最大相差 {change}。",
    "saturation.holds": "{subject} 再增大没有好处，更大取值与参照相差 {change}。",
    "saturation.does_not_hold": "{subject} 再增大仍有好处，更大取值与参照相差 {change}。",
    "sweet_spot.holds": "{subject} 的最好取值是 {low} 到 {high}（其中各值彼此无法区分）。",
    "sweet_spot.does_not_hold": "{subject} 没有哪个取值比别的更好。",
    "sweet_spot.pair": "{subject} 的作用不能相加，一个轴的作用随另一个轴改变 {change}：应一起选取。",
    "noise.holds": "同一配置各次运行的相对标准差为 {percent}。（{statement}）",
    "keep_discard.holds": "保留与丢弃：{figure}。（{statement}）",
    "keep_discard.does_not_hold": "保留与丢弃：{figure}。（{statement}）",
    "drift.holds": "机器在研究期间发生了变化：{change}。",
    "drift.does_not_hold": "同一配置的重复运行在研究期间变化 {change}，未超出噪声。",
    "setting_not_applied.holds": "有设置没有在服务器上生效：{figure}。（{statement}）",
    "setting_not_applied.does_not_hold": "服务器显示出来的设置全部生效。（{statement}）",
    "correctness.holds": "文本与普通解码逐字节相同的轮占 {percent}。",
    "correctness.does_not_hold": "文本与普通解码不同：{figure}。（{statement}）",
    "degenerate_output.holds": "有回答在重复自己，这些运行不能胜出：{figure}。（{statement}）",
    "degenerate_output.does_not_hold": "没有回答在重复自己。",
    "prefill_share.holds": "提示处理占服务器时间的 {percent}。",
    "prefill_share.does_not_hold": "提示处理占服务器时间的 {percent}。",
    "host_cost.holds": "在主机上运行的阶段占每步的 {percent}。",
    "host_cost.does_not_hold": "在主机上运行的阶段只占每步的 {percent}。",
    "memory.holds": "内存（{subject}）：{figure}。（{statement}）",
    "memory.does_not_hold": "内存（{subject}）：{figure}。（{statement}）",
    "accounting.holds": "各阶段之和与步时相符，未说明的时间占 {percent}。",
    "accounting.does_not_hold": "有运行的步时中超过 5 % 不属于任何打印出来的阶段。（{statement}）",
    "comparability.holds": "所有完成的运行条件相同，可以一起排序。",
    "comparability.does_not_hold": "并非所有运行条件相同：{figure}。（{statement}）",
}
