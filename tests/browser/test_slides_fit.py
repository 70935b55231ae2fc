"""The workshop's slides in reveal.js itself: each whole on the screen, in type that can be read, no network."""

import pytest

from course.slides import HEIGHT, WIDTH, page, reveal_wheel

SMALLEST = 17
"""Type that the last row of a room can read on a slide of 720 lines, in pixels."""


@pytest.mark.browser
def test_all_of_it_is_on_the_screen_without_a_network(tmp_path, browser):
    path = tmp_path / "slides.html"
    path.write_text(page(wheel=reveal_wheel(tmp_path)), encoding="utf-8")
    window = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
    asked, wrong = [], []
    window.on("request", lambda request: asked.append(request.url))
    window.on("pageerror", lambda error: wrong.append(str(error)))
    window.goto(path.as_uri())
    window.wait_for_function("Reveal.isReady()")
    boxes = window.evaluate(
        """async () => {
            const found = [];
            for (let n = 0; n < Reveal.getTotalSlides(); n++) {
                const slide = Reveal.getCurrentSlide(), scale = Reveal.getScale();
                const origin = document.querySelector('.reveal .slides').getBoundingClientRect();
                for (const each of slide.querySelectorAll(':scope > *:not(aside), pre, li, p, img, td')) {
                    if (each.closest('aside')) continue;
                    const range = document.createRange(); range.selectNodeContents(each);
                    const box = each.tagName == 'PRE' ? range.getBoundingClientRect() : each.getBoundingClientRect();
                    found.push([n, (box.right - origin.left) / scale, (box.bottom - origin.top) / scale,
                                parseFloat(getComputedStyle(each).fontSize)]);
                }
                Reveal.next();
                await new Promise(resolve => setTimeout(resolve, 900));
            }
            return found;
        }"""
    )
    assert len({n for n, *_ in boxes}) >= 40 and not wrong
    assert all(url.startswith(("file:", "data:")) for url in asked)
    out = [box for box in boxes if box[1] > WIDTH or box[2] > HEIGHT or box[3] < SMALLEST]
    assert not out
