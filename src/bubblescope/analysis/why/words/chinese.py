"""Findings in Chinese."""
# ruff: noqa: RUF001  Chinese punctuation is what is meant

from __future__ import annotations

from typing import Final

from bubblescope.analysis.idle.causes import Cause

SENTENCES: Final[dict[tuple[str, str], str]] = {
    ("verdict", "inherent"): "各 rank 有 {rate_share} 的时间空闲，全部是 {schedule} 调度固有的。",
    ("advice", "inherent"): (
        "只有增加微批次、减少流水线级数或更换调度才能降低（bubblescope whatif）。"
    ),
    ("verdict", "causes"): (
        "各 rank 有 {rate_share} 的时间空闲：其中 {inherent_share} 是 {schedule} 调度固有的，"
        "{other_share} 不是。"
    ),
    ("verdict", "first"): (
        "首要原因是{cause}：占空闲时间的 {idle_share}（所有 rank 合计 {idle_ns}）。"
        "没有它，每步可缩短 {saved_ns}（{saved_share}）。"
    ),
    ("verdict", "next"): (
        "其次是{cause}：占空闲时间的 {idle_share}（{idle_ns}）；"
        "没有它，每步可缩短 {saved_ns}（{saved_share}）。"
    ),
    ("verdict", "first_hidden"): (
        "首要原因是{cause}：占空闲时间的 {idle_share}（所有 rank 合计 {idle_ns}）。"
        "单独去除它不会缩短每步时间：其他原因仍让各 rank 等待。"
    ),
    ("verdict", "next_hidden"): (
        "其次是{cause}：占空闲时间的 {idle_share}（{idle_ns}）；单独去除它不会缩短每步时间。"
    ),
    ("evidence", "imbalance"): (
        "第 {stage} 级每个微批次耗时 {cost_ns}，是各级平均值（{mean_ns}）的 {mean_times}。"
    ),
    ("advice", "imbalance"): "把部分层移到其他级，或让嵌入层、输出层所在的级少放几层。",
    ("evidence", "slow_rank"): (
        "rank {rank} 比同级正常 rank 慢 {slow_share}，出现在 {of} 步中的 {steps} 步。"
    ),
    ("advice", "slow_rank"): "检查该设备的频率、温度、功耗上限和其他进程；若持续偏慢，请替换。",
    ("evidence", "variation"): (
        "同类同级任务的耗时离散度为 {spread_share}（标准差）；偏离最大的是 {task}："
        "{longest_ns}，通常为 {usual_ns}。"
    ),
    ("advice", "variation"): "均衡各微批次：按计算量而不是按 token 数打包序列。",
    ("evidence", "order"): "{count} 个任务未按调度顺序执行。第一个：{first}。",
    ("advice", "order"): "对照作业请求的顺序与调度的顺序；双流或迟到的接收会交换任务。",
    ("evidence", "transfer"): (
        "从 rank {from} 到 rank {to} 的传输最慢：{delay_ns}；半数链路不超过 {median_ns}。"
    ),
    ("advice", "transfer"): "尽早或在后台发送，把相邻的级放在同一台机器上，或检查这条链路。",
    ("evidence", "pause"): (
        "主机在 {count} 个任务之前停顿，共 {late_ns}；其中 rank {rank} 占 {rank_ns}，"
        "最长一次在 {task} 之前：{longest_ns}。"
    ),
    ("advice", "pause"): (
        "让所有 rank 在同一步做垃圾回收（gc.disable，每隔若干步 gc.collect），"
        "数据加载和检查点放到后台。"
    ),
    ("evidence", "launch"): (
        "{count} 个任务本可更早执行，却下发过晚，共 {late_ns}；其中 rank {rank} 占 {rank_ns}，"
        "最长一次在 {task} 之前：{longest_ns}。"
    ),
    ("advice", "launch"): (
        "主机跟不上设备：增大微批次、使用 CUDA Graph、减少同步、为每个 rank 留一个空闲 CPU 核。"
    ),
    ("evidence", "sync"): (
        "{count} 个任务因所在 rank 正在做集合通信或优化器而推迟，共 {late_ns}；"
        "其中 rank {rank} 占 {rank_ns}。"
    ),
    ("advice", "sync"): "让梯度规约和参数收集与流水线重叠。",
    ("evidence", "unexplained"): (
        "{count} 个任务推迟开始，共 {late_ns}，跟踪中没有原因；其中 rank {rank} 占 {rank_ns}，"
        "最长一次在 {task} 之前：{longest_ns}。"
    ),
    ("advice", "unexplained"): "带主机时间（下发、垃圾回收、数据加载）的跟踪可以说明原因。",
    ("evidence", "clock"): (
        "不同主机的时钟可能相差 {error_ns}；{early} 个结果在到达之前就被使用，最多提前 {early_ns}。"
    ),
    ("advice", "clock"): "同步时钟（PTP），或让 bubblescope 求解（--clock solve）。",
}
"""By role and key of a finding; the fields are its values."""

CAUSES: Final = {
    Cause.WARM_UP: ("预热", "调度固有，rank 的第一个反向之前"),
    Cause.STEADY: ("稳态", "调度固有，第一个反向与最后一个前向之间"),
    Cause.COOL_DOWN: ("冷却", "调度固有，最后一个前向之后"),
    Cause.IMBALANCE: ("级间不均衡", "各级的计算量不同"),
    Cause.SLOW_RANK: ("慢 rank", "某个 rank 比同级的其他 rank 或自己的其他步慢"),
    Cause.VARIATION: ("微批次差异", "各微批次的计算量不同"),
    Cause.ORDER: ("顺序偏离", "任务没有按调度的顺序执行"),
    Cause.TRANSFER: ("暴露的传输", "结果在 rank 之间传输"),
    Cause.PAUSE: ("主机停顿", "主机上的垃圾回收、数据加载或检查点"),
    Cause.LAUNCH: ("主机下发", "任务本可执行，主机下发过晚"),
    Cause.SYNC: ("同步", "集合通信和优化器"),
    Cause.UNEXPLAINED: ("未知", "任务本可执行却没有执行，跟踪没有说明原因"),
    Cause.CLOCK: ("时钟误差", "在不同主机时钟可能的误差之内"),
}
"""Name and meaning of each cause."""

HEADINGS: Final = {
    "verdict": "结论",
    "evidence": "依据",
    "advice": "下一步",
    "causes": "设备空闲的原因",
    "ranks": "各 rank",
    "gaps": "最长的空隙",
    "cause": "原因",
    "idle": "空闲时间",
    "share": "占比",
    "cost": "每步代价",
    "last": "去除后节省",
    "meaning": "含义",
    "rank": "rank",
    "other": "非固有",
    "mostly": "主要原因",
    "where": "位置",
    "before": "之前",
    "root": "等待的任务",
}
"""Headings of tables and columns."""

NOTES: Final = {
    "schedule": "所测顺序",
    "times": "倍",
    "task": "第 {step} 步 rank {rank} 的 {label}",
    "bare_task": "rank {rank} 的 {label}",
    "rank": "rank {rank}",
    "more": "还有 {count} 个；--all 显示全部",
    "outside": "流水线阶段前后的{cause}：{idle_ns}",
    "step": "rank {rank}，第 {step} 步",
    "replay": "重放：与实测步时平均相差 {mean}，最多 {worst}",
    "doubt": "；时间与先后关系矛盾，原因仅供参考",
    "left_out": "；{count} 个结果在开始产生之前就被使用，已略去",
    "part": "；代价取自 {of} 步中的 {steps} 步",
}
"""What is printed beside the tables."""
