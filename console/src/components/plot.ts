import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { date } from '../format'

export type Series = { label: string; values: (number | null)[]; colour?: number; isDashed?: boolean }

type Options = {
  xs: number[]
  /** The x axis, in seconds; else that of the data. */
  range?: [number, number]
  isTime: boolean
  series: Series[]
  height: number
  format: (value: number) => string
  marks: () => { at: string; label: string }[]
  colours: string[]
  line: string
  dim: string
  font: string
}

export const dataOf = (xs: number[], series: Series[]) => [xs, ...series.map((one) => one.values)] as uPlot.AlignedData

/** `12:03`, or the day if the axis has more than one. */
function timeLabel(seconds: number, axisSeconds: number): string {
  const text = date(new Date(seconds * 1000).toISOString())
  return axisSeconds > 36 * 3600 ? text.slice(5, 10) : text.slice(11)
}

/** The label of a mark, at the side of it where it fits. */
function labelMark(plot: uPlot, label: string, x: number) {
  const pixels = devicePixelRatio
  const [left, right] = [x - plot.bbox.left, plot.bbox.left + plot.bbox.width - x]
  const isRight = right >= left
  plot.ctx.font = `${10 * pixels}px sans-serif`
  plot.ctx.fillStyle = plot.ctx.strokeStyle
  const room = Math.max(left, right) - 4 * pixels
  let short = label.length > 26 ? `${label.slice(0, 25)}…` : label
  while (short.length > 4 && plot.ctx.measureText(short).width > room) short = `${short.slice(0, -2)}…`
  plot.ctx.textAlign = isRight ? 'left' : 'right'
  plot.ctx.fillText(short, x + (isRight ? 4 : -4) * pixels, plot.bbox.top + 10 * pixels)
}

export function draw(box: HTMLElement, options: Options): uPlot {
  const { xs, range, isTime, series, height, colours, line, dim, font, format } = options
  const axis = { stroke: dim, font: `11px ${font}`, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } }
  return new uPlot(
    {
      width: box.clientWidth,
      height,
      legend: { show: false },
      cursor: { ...(isTime ? { sync: { key: 'postroad' } } : {}), points: { size: 6 } },
      scales: { x: { time: isTime, ...(range ? { range: () => range } : {}) }, y: { range: (_plot, _low, high) => [0, Math.max(1, (high ?? 1) * 1.08)] } },
      axes: [isTime ? { ...axis, values: (plot, values) => values.map((value) => timeLabel(value, (plot.scales.x!.max ?? 0) - (plot.scales.x!.min ?? 0))) } : { ...axis, values: (_plot, values) => values.map((value) => `${value} s`) }, { ...axis, size: 56, values: (_plot, values) => values.map((value) => format(value)) }],
      series: [{}, ...series.map((one, index) => ({ label: one.label, stroke: colours[(one.colour ?? index) % colours.length], width: 1.5, ...(one.isDashed ? { dash: [5, 4] } : {}), points: { show: xs.length < 3 } }))],
      hooks: {
        draw: [
          (plot) => {
            plot.ctx.save()
            plot.ctx.strokeStyle = dim
            plot.ctx.lineWidth = devicePixelRatio
            plot.ctx.setLineDash([3, 3])
            let labelled = -Infinity
            for (const mark of [...options.marks()].sort((a, b) => a.at.localeCompare(b.at))) {
              const x = plot.valToPos(Date.parse(mark.at) / 1000, 'x', true)
              if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue
              plot.ctx.beginPath()
              plot.ctx.moveTo(x, plot.bbox.top)
              plot.ctx.lineTo(x, plot.bbox.top + plot.bbox.height)
              plot.ctx.stroke()
              if (x - labelled < 150 * devicePixelRatio) continue
              labelMark(plot, mark.label, x)
              labelled = x
            }
            plot.ctx.restore()
          },
        ],
      },
    },
    dataOf(xs, series),
    box,
  )
}
